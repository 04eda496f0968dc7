"""Logs: one line per record, JSON or text, to standard error.

No secret is ever written. Prompts and answers are written only with `telemetry.log_content`.
"""

from __future__ import annotations

import json
import logging
import re
import time
from functools import lru_cache
from typing import Any, Literal

import orjson

from nproxy.telemetry.line_writer import LineWriter

STANDARD_ERROR = 2

access = logging.getLogger("nproxy.access")
"""One record per request; the fields are passed in `extra={"fields": {...}}`."""

_BLANK = {
    level: logging.LogRecord(access.name, level, "", 0, "", (), None).__dict__
    for level in (logging.DEBUG, logging.INFO)
}
"""What all records of requests have in common: no line shows a place in the code, a thread or a process."""
_DELETE = "\x7f"  # the only ASCII character that JSON does not escape and no terminal prints
_PLAIN = re.compile(r"[^\s\"=]+")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def access_record(level: int, message: str, fields: dict[str, object]) -> logging.LogRecord:
    """Make a record for `access` of what has just happened; skips the lookup of the caller's place, which is not shown.

    level: DEBUG or INFO.
    """
    record = logging.LogRecord.__new__(logging.LogRecord)
    now = time.time()
    record.__dict__ = _BLANK[level].copy()
    record.msg, record.created, record.msecs = message, now, int(now % 1 * 1000)
    record.fields = fields
    return record


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object: time (UTC, RFC 3339), level, logger, message, then the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, Any] = {
            "time": f"{_utc(int(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return _dumps(line)


class TextLines(logging.Formatter):
    """Formats a record for people: message first, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of text, with a traceback below it if there is one."""
        fields = " ".join(f"{key}={_shown(value)}" for key, value in _fields(record).items())
        head = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} {record.getMessage()}"
        text = f"{head} {fields}" if fields else head
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure(level: str, form: Literal["json", "text"], fd: int = STANDARD_ERROR) -> None:
    """Send the records of nproxy's loggers, from `level` up, to a file descriptor. May be called again."""
    writer = next((one for one in _writers() if one.fd == fd), None) or LineWriter(fd)
    writer.setFormatter(_formatter(form))
    for name in ("nproxy", "aiohttp"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [writer]
        logger.propagate = False
    logging.getLogger("nproxy").setLevel(_LEVELS[level])
    logging.getLogger("aiohttp").setLevel(logging.ERROR)


def reformat(form: Literal["json", "text"]) -> None:
    """Write all further lines in another format. No effect before `configure` was called."""
    for writer in _writers():
        writer.setFormatter(_formatter(form))


def say(text: str) -> None:
    """Write lines that are not log records, for whoever started this process; after the records logged so far.

    No effect before `configure` was called.
    """
    for writer in _writers():
        writer.say(text)


def dropped_lines() -> int:
    """Return how many records of this process were not written."""
    return sum(writer.dropped for writer in _writers())


def _writers() -> list[LineWriter]:
    return [handler for handler in logging.getLogger("nproxy").handlers if isinstance(handler, LineWriter)]


def _formatter(form: Literal["json", "text"]) -> logging.Formatter:
    if form == "text":
        return TextLines()
    return JsonLines()


@lru_cache(1)  # hundreds of records come in one second
def _utc(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _shown(value: object) -> str:
    """Return a value as text: plain if it can be read back so, else as JSON."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.isprintable() else _dumps(value)
    return _dumps(value) if isinstance(value, list | dict) else str(value)


def _dumps(value: object) -> str:
    """Return JSON that is safe to print: text that a terminal might interpret or reverse is written in ASCII."""
    try:
        text = orjson.dumps(value, default=str).decode()
    except TypeError:  # bytes of a path that are not UTF-8, a lone surrogate, a number of twenty digits
        text = ""
    if text and ((text.isascii() and _DELETE not in text) or text.isprintable()):
        return text
    return json.dumps(value, default=str, separators=(",", ":"))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}

"""Logs: one line per record, JSON or text, to stderr. No prompt, no answer and no secret is ever written."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, Literal, TextIO

import orjson

access = logging.getLogger("nproxy.access")
"""One record per request; the fields travel in `extra={"fields": {...}}`."""

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class JsonLines(logging.Formatter):
    """A record as one JSON object: time (UTC, RFC 3339), level, logger, message, then the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class TextLines(logging.Formatter):
    """The same for people: message first, fields behind it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value}" for key, value in _fields(record).items())
        head = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} {record.getMessage()}"
        text = f"{head} {fields}" if fields else head
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure(level: str, form: Literal["json", "text"], stream: TextIO | None = None) -> None:
    """Send the records of nproxy's loggers from `level` on to `stream` (default stderr). May be called again."""
    formatter: logging.Formatter = JsonLines() if form == "json" else TextLines()
    if form == "json":
        formatter.converter = time.gmtime
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    for name in ("nproxy", "aiohttp"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
    logging.getLogger("nproxy").setLevel(_LEVELS[level])
    logging.getLogger("aiohttp").setLevel(logging.ERROR)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}

"""Sees whatever the tests of a session log and show, and knows what may never stand there.

Secrets and prompts of tests hold the word `canary`, and answers of the scripted upstream begin with `seed` and a
number: neither may be in a log record, down to debug and with its traceback, in the metrics or on the status page.
Every test is asked at its end (tests/conftest.py), so the whole suite is.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any

SECRET = re.compile(r"canary|seed \d", re.IGNORECASE)
LOGGERS = ("nproxy", "aiohttp", "asyncio", "engine")

_traceback = logging.Formatter().formatException


class Witness:
    """What was seen where it may not be; `told` gives it once."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self._watched: set[type] = set()

    def look(self, where: str, text: str) -> None:
        """Look through one text."""
        if (found := SECRET.search(text)) is not None:
            self._seen.append(f"{where}: ...{text[max(0, found.start() - 80) : found.end() + 40]}...")

    def told(self) -> list[str]:
        """What was seen since the last time."""
        seen, self._seen = self._seen, []
        return seen

    def listen(self) -> None:
        """Have everything logged, and look through it."""
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.DEBUG)
        app = sys.modules.get("nproxy.gateway.app")
        if app is not None and app.App not in self._watched:
            self._watched.add(app.App)
            self._watch(app.App)

    def heard(self, record: logging.LogRecord) -> None:
        """Look through a record: its message, its fields, its traceback."""
        if record.name.partition(".")[0] not in LOGGERS:
            return
        error = _traceback(record.exc_info) if record.exc_info and record.exc_info[0] else ""
        fields = json.dumps(vars(record).get("fields", {}), default=repr)
        self.look(f"logger {record.name}", f"{record.getMessage()} {fields} {error}")

    def _watch(self, app: Any) -> None:
        """Have the metrics and the status of every gateway looked through when it ends."""
        close = app.close

        async def look_and_close(self: Any) -> None:
            from nproxy.gateway import introspect

            introspect.look(self)
            witness.look("metrics", "\n".join(_labels(self.metrics.report())))
            witness.look("status", json.dumps(introspect.status_document(self), default=repr))
            await close(self)

        app.close = look_and_close


def _labels(report: Any) -> set[str]:
    """What metrics say that no code has written down: the values of labels, those of exemplars too."""
    said = {value for family in report.values() for _, labels in family.samples for _, value in labels}
    traced = (exemplar for family in report.values() for exemplar in family.exemplars.values())
    return said | {value for exemplar in traced for value in exemplar.labels.values()}


witness = Witness()
"""One for a process: loggers are the process's, too."""

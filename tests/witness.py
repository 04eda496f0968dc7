"""Checks everything that the tests of a session log and show for text that must not appear there.

Secrets and prompts of tests contain the word `canary`, and answers of the scripted upstream begin with `seed` and a
number. Neither may appear in a log record, down to debug level and including its traceback, nor in the metrics or on
the status page. tests/conftest.py checks this at the end of every test, and so for the whole suite.
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
    """Collects forbidden text; `told` returns it once."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self._watched: set[type] = set()

    def look(self, where: str, text: str) -> None:
        """Search one text. where: named in the report."""
        if (found := SECRET.search(text)) is not None:
            self._seen.append(f"{where}: ...{text[max(0, found.start() - 80) : found.end() + 40]}...")

    def told(self) -> list[str]:
        """Return what was found since the last call."""
        seen, self._seen = self._seen, []
        return seen

    def listen(self) -> None:
        """Enable all log levels, and watch the gateway's App once it is imported."""
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.DEBUG)
        app = sys.modules.get("nproxy.gateway.app")
        if app is not None and app.App not in self._watched:
            self._watched.add(app.App)
            self._watch(app.App)

    def heard(self, record: logging.LogRecord) -> None:
        """Search a log record: its message, its fields, its traceback."""
        if record.name.partition(".")[0] not in LOGGERS:
            return
        error = _traceback(record.exc_info) if record.exc_info and record.exc_info[0] else ""
        fields = json.dumps(vars(record).get("fields", {}), default=repr)
        self.look(f"logger {record.name}", f"{record.getMessage()} {fields} {error}")

    def _watch(self, app: Any) -> None:
        """Search the metrics and the status of every gateway when it ends."""
        close = app.close

        async def look_and_close(self: Any) -> None:
            from nproxy.gateway import introspect

            introspect.look(self)
            witness.look("metrics", "\n".join(_labels(self.metrics.report())))
            witness.look("status", json.dumps(introspect.status_document(self), default=repr))
            await close(self)

        app.close = look_and_close


def _labels(report: Any) -> set[str]:
    """All text in the metrics that does not come from the code: values of labels, including those of exemplars."""
    said = {value for family in report.values() for _, labels in family.samples for _, value in labels}
    traced = (exemplar for family in report.values() for exemplar in family.exemplars.values())
    return said | {value for exemplar in traced for value in exemplar.labels.values()}


witness = Witness()
"""One for the process, like the loggers."""

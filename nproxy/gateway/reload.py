"""Reloads: what is served follows its files, and what is wrong with them changes nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from nproxy.config import Config, ConfigError, Problem, Reading, Watch, needs_restart
from nproxy.telemetry.common_metrics import CommonMetrics

POLL_SECONDS = 1.0
"""Between two looks at the files; a change is taken once nothing has moved from one look to the next."""

log = logging.getLogger("nproxy.reload")


@dataclass(frozen=True, slots=True)
class Reload:
    """One reading of the settings, and what became of it.

    at: Unix time. applied: they are served now. unchanged: they say what is served already. refused: what was served
    before is served on; problems: why, without a secret. changed: the sections, and the files that they name, which
    differ from what was served.
    """

    at: float
    outcome: Literal["applied", "unchanged", "refused"]
    problems: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class History:
    """Since when settings are served, and what the last reload came to, as /status and the metrics tell it.

    Made when the first settings are served.
    """

    def __init__(self, metrics: CommonMetrics) -> None:
        self._metrics = metrics
        self._since = time.time()
        self._last: Reload | None = None
        metrics.reload_success.set(1)
        metrics.reload_time.set(self._since)

    def add(self, reload: Reload) -> None:
        """Take a reload, whatever came of it."""
        self._last = reload
        if reload.outcome == "applied":
            self._since = reload.at
        self._metrics.reloaded(reload.outcome, reload.at)

    def status(self) -> dict[str, object]:
        """What the status page says of it."""
        told: dict[str, object] = {"since": _moment(self._since), "last_reload": None}
        if (last := self._last) is not None:
            told["last_reload"] = {"at": _moment(last.at), "outcome": last.outcome, "problems": [*last.problems]}
        return told


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


class Reloader:
    """Reads the settings again when they are asked to be, and when one of their files has changed.

    served: what is served from the start. apply: serves what was read, all of it or, raising ConfigError, nothing; the
    settings it gets are good and need no restart. tell: hears of every reload.
    """

    def __init__(
        self,
        served: Reading,
        apply: Callable[[Reading], None],
        tell: Callable[[Reload], None],
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._served = served
        self._apply = apply
        self._tell = tell
        self._poll_seconds = poll_seconds
        self._watch = Watch(served.files)
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Have the settings read now, whether files have changed or not."""
        self._asked.set()

    async def run(self) -> None:
        """Look and listen until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):
                    await self._asked.wait()
            # in a thread: a file system may be slow, or gone
            if self._asked.is_set() or await asyncio.to_thread(self._watch.look):
                self._asked.clear()
                await self.reload()

    async def reload(self) -> Reload:
        """Read the settings, and serve them where they are good."""
        try:
            reading = await asyncio.to_thread(self._served.again)
            # of settings that are refused, any file may be what is to be mended
            self._watch = Watch({**self._served.files, **reading.files})
            reload = self._judge(reading)
        except Exception:
            log.exception("a reload failed")  # a fault of our own, which is no reason to stop serving
            reload = Reload(time.time(), "refused", ("a fault of nproxy's own; the log tells more",))
        _log(reload)
        self._tell(reload)
        return reload

    def _judge(self, reading: Reading) -> Reload:
        at, served = time.time(), self._served
        if reading.config is None:
            return _refused(at, reading.problems)
        if fixed := needs_restart(served.checked(), reading.config, reading.tree):
            return _refused(at, fixed)
        changed = (*_changed_sections(served.checked(), reading.config), *_changed_files(served, reading))
        if not changed:
            self._served = reading
            return Reload(at, "unchanged")
        try:
            self._apply(reading)
        except ConfigError as error:
            return _refused(at, error.problems)
        self._served = reading
        return Reload(at, "applied", changed=changed)


def _refused(at: float, problems: list[Problem] | tuple[Problem, ...]) -> Reload:
    return Reload(at, "refused", tuple(map(str, problems)))


def _changed_sections(one: Config, other: Config) -> tuple[str, ...]:
    return tuple(key for key in Config.model_fields if getattr(one, key) != getattr(other, key))


def _changed_files(one: Reading, other: Reading) -> tuple[str, ...]:
    differ = one.named_files.items() ^ other.named_files.items()
    return tuple(sorted({str(file) for file, _ in differ}))


def _log(reload: Reload) -> None:
    match reload.outcome:
        case "applied":
            log.info("settings reloaded", extra={"fields": {"changed": [*reload.changed]}})
        case "unchanged":
            log.info("settings are what they were")
        case "refused":
            for problem in reload.problems:
                log.error("settings are not reloaded: %s", problem)

"""Reloads: settings are read again when their files change. Invalid settings change nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from nproxy.concurrency.daemon_thread import in_daemon_thread
from nproxy.config import Config, ConfigError, Problem, Reading, Watch, needs_restart
from nproxy.gateway.open_port import warn_of_an_open_port
from nproxy.telemetry.common_metrics import CommonMetrics

POLL_SECONDS = 1.0
"""Between two checks of the files. A change is used once the files are the same in two checks in a row."""

_THREAD = "nproxy-reload"

log = logging.getLogger("nproxy.reload")


@dataclass(frozen=True, slots=True)
class Reload:
    """One reading of the settings, and its result.

    at: Unix time. outcome: applied if they are in use now, unchanged if they are the same as before, refused if the
    previous ones stay in use. problems: why they were refused, without secrets. changed: the sections, and the files
    that they name, which differ from before.
    """

    at: float
    outcome: Literal["applied", "unchanged", "refused"]
    problems: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class History:
    """Since when the settings are in use, and the result of the last reload, for /status and the metrics.

    Create it when the first settings come into use.
    """

    def __init__(self, metrics: CommonMetrics) -> None:
        self._metrics = metrics
        self._since = time.time()
        self._last: Reload | None = None
        metrics.reload_success.set(1)
        metrics.reload_time.set(self._since)

    def add(self, reload: Reload) -> None:
        """Note a reload, whatever its outcome."""
        self._last = reload
        if reload.outcome == "applied":
            self._since = reload.at
        self._metrics.reloaded(reload.outcome, reload.at)

    def status(self) -> dict[str, object]:
        """Return the part of /status about the settings."""
        status: dict[str, object] = {"since": _moment(self._since), "last_reload": None}
        if (last := self._last) is not None:
            status["last_reload"] = {"at": _moment(last.at), "outcome": last.outcome, "problems": [*last.problems]}
        return status


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


class Reloader:
    """Reads the settings again on request, and when one of their files has changed.

    served: the settings in use at the start. apply: uses the settings that were read, or raises ConfigError and changes
    nothing; it gets valid settings only, which need no restart. tell: called with every reload.
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
        """Have the settings read now, whether or not files have changed."""
        self._asked.set()

    async def run(self) -> None:
        """Check the files, and wait for requests, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):
                    await self._asked.wait()
            if self._asked.is_set() or await self._changed():
                self._asked.clear()
                await self.reload()

    async def _changed(self) -> bool:
        """Look at the files, in a thread, because a file system may be slow or unavailable."""
        try:
            return await in_daemon_thread(self._watch.look, _THREAD)
        except RuntimeError:  # no thread can be started; the next poll tries again
            return False

    async def reload(self) -> Reload:
        """Read the settings, and use them if they are valid. Returns the result."""
        try:
            reload = self._judge(await self._read())
        except Exception:
            log.exception("a reload failed")  # an internal error is no reason to stop serving
            reload = Reload(time.time(), "refused", ("an error in nproxy; see the log",))
        _log(reload)
        self._tell(reload)
        return reload

    async def _read(self) -> Reading:
        """Read the files, and watch those that were read from now on."""
        try:
            reading = await in_daemon_thread(self._served.again, _THREAD)
        except RuntimeError:  # no thread can be started: the next poll is to find the change again
            self._watch = Watch(self._served.files)
            raise
        self._watch = Watch(reading.files)  # also those of refused settings: the user may mend any of them
        return reading

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
        if served.checked().auth is not None:
            warn_of_an_open_port(reading.config)
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
            log.info("settings are unchanged")
        case "refused":
            for problem in reload.problems:
                log.error("settings were not reloaded: %s", problem)

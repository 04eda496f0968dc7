"""What systemd is told while `nproxy serve` comes up, and when its settings are read again."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nproxy.cli.serving import _Herald
from nproxy.gateway.reload import Reload
from nproxy.telemetry.common_metrics import CommonMetrics
from nproxy.workers.notify import READY, Notifier

RELOAD = Reload(0.0, "unchanged")


class Listener:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.notifier = Notifier(str(path))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def heard(self) -> list[str]:
        """The first line of each message so far."""
        lines: list[str] = []
        while True:
            try:
                lines.append(self._socket.recv(4096).decode().splitlines()[0])
            except BlockingIOError:
                return lines

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd() -> Iterator[Listener]:
    with tempfile.TemporaryDirectory() as folder:
        listener = Listener(Path(folder) / "n")
        yield listener
        listener.close()


@pytest.mark.parametrize("engine_first", [True, False])
def test_ready_is_told_once_when_gateway_and_engine_are_and_not_by_a_reload_before(
    systemd: Listener, engine_first: bool
) -> None:
    metrics = CommonMetrics("0")
    herald = _Herald(systemd.notifier, "m", keys=False, playground=True, loading=True)
    steps: list[Callable[[], None]] = [herald.engine_ready, lambda: herald.listens("http://127.0.0.1:8000", metrics)]
    first, second = steps if engine_first else reversed(steps)
    herald.reloaded(RELOAD)
    first()
    herald.reloaded(RELOAD)
    assert systemd.heard() == []
    second()
    assert systemd.heard() == [READY]
    herald.engine_restarted()
    herald.engine_ready()
    assert systemd.heard() == []
    assert metrics.registry.get_sample_value("nproxy_engine_restarts_total") == 1
    herald.reloaded(RELOAD)
    assert systemd.heard() == ["RELOADING=1", READY]


def test_without_an_engine_the_gateway_is_all_that_is_waited_for(systemd: Listener) -> None:
    herald = _Herald(systemd.notifier, None, keys=True, playground=True, loading=False)
    herald.listens("http://127.0.0.1:8000", CommonMetrics("0"))
    assert systemd.heard() == [READY]

"""The signals by which the user ends a benchmark early."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from nproxy.cli.bench.early_end import EarlyEnd


@pytest.fixture
def handlers() -> Iterator[None]:
    """The handlers of the tests, which come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_second_signal_ends_the_process_as_usual(number: signal.Signals, handlers: None) -> None:
    early = EarlyEnd()
    with early.heard():
        signal.raise_signal(number)
        await early.event.wait()
        assert early.number == number
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

"""The core that threads share: each gets its news as it comes, whoever runs the steps."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from unittest.mock import Mock

import pytest

from engine.batch import Batch, StepOutput
from engine.config import EngineConfig
from engine.core import Core
from engine.errors import EngineError
from engine.library.shared import SharedCore
from engine.messages import Add, Embed, TokenDrawn
from tests.engine.scheduling import LATE, add, assert_right, check, engine_of, run
from tests.fakes.runner import HashRunner, ready

THREADS, TOKENS = 8, 40


def waiting_for(*groups: Add | Embed) -> deque[Add | Embed]:
    """What is still to be added to a core."""
    return deque(groups)


class _Leisurely(HashRunner):
    """A step takes a moment in which other threads run, as with a model."""

    def submit(self, batch: Batch) -> StepOutput:
        time.sleep(0.01)
        return super().submit(batch)


def test_no_thread_steps_on_while_the_others_wait_for_what_is_there() -> None:
    core = SharedCore(Core(EngineConfig("none", block_size=4), _Leisurely(ready())), room=THREADS)

    def streams(group: int) -> list[int]:
        """How many tokens each piece of news has brought."""
        waiting, brought = waiting_for(add(group, 3, 1, TOKENS)), list[int]()
        while sum(brought) < TOKENS:
            news = core.news([group], waiting).get(group, [])
            brought.append(sum([isinstance(one, TokenDrawn) for one in news]))
        return brought

    with ThreadPoolExecutor(THREADS) as threads:
        brought = [one.result(60) for one in [threads.submit(streams, group) for group in range(THREADS)]]
    counts = [count for of_thread in brought for count in of_thread if count]
    assert sum(counts) / len(counts) < 1.5, "tokens come in bursts"


@pytest.mark.parametrize("late", [False, True], ids=["submitted", "waited for"])
def test_ctrl_c_in_a_step_ends_what_it_was_for_and_the_engine_goes_on(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(early=LATE if late else None)
    core, mine, beside = SharedCore(engine, room=16), [0], waiting_for(add(1, 3, 1, 9))
    core.news([1], beside)

    name = "result" if late else "submit"
    runs = getattr(engine._runner, name)

    def interrupted(*given: object) -> None:
        runs(*given)
        raise KeyboardInterrupt

    waiting = waiting_for(add(0, 3, 1, 9))
    core.news(mine, waiting)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine._runner, name, interrupted)
        while True:
            core.news(mine, waiting)
    core.leave(mine)
    check(engine)
    with pytest.raises(EngineError, match="failed while computing"):  # for another thread, whose step it was, too
        while True:
            core.news([1], beside)
    core.leave([1])
    after = add(2, 3, 2, 9)
    assert_right(run(engine, after), after)


@pytest.mark.parametrize("part", ["schedule", "receive"])
def test_ctrl_c_in_the_middle_of_a_change_ends_the_engine(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would go on with blocks that are held by nobody, or by two."""
    engine = engine_of()
    core, waiting = SharedCore(engine, room=16), waiting_for(add(0, 3, 1, 9))
    core.news([0], waiting)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine.scheduler, part, Mock(side_effect=KeyboardInterrupt))
        while True:
            core.news([0], waiting)
    core.leave([0])
    with pytest.raises(EngineError, match="interrupted in a step"):
        core.news([1], waiting_for(add(1, 3, 1, 9)))


def test_a_call_in_the_middle_of_another_on_its_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a signal handler: it would wait for itself."""
    engine = engine_of()
    core, waiting, refused = SharedCore(engine, room=16), waiting_for(add(0, 3, 1, 9)), list[str]()
    step = engine.step

    def interrupted() -> object:
        for call in (lambda: core.news([1], waiting_for(add(1, 3, 1, 9))), core.close, lambda: core.abort(0, (0,))):
            with pytest.raises(EngineError, match="in the middle of another one on the same thread") as error:
                call()
            refused.append(str(error.value))
        return step()

    with monkeypatch.context() as patch:
        patch.setattr(engine, "step", interrupted)
        core.news([0], waiting)
    assert len(refused) == 3
    while not core.news([0], waiting):  # which goes on, as if it had not been interrupted
        pass


def test_a_call_that_is_interrupted_while_it_gets_in_line_bars_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(deque[Event]):
        def append(self, _: Event) -> None:
            raise KeyboardInterrupt

    core, waiting = SharedCore(engine_of(), room=16), waiting_for(add(0, 3, 1, 9))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(core, "_line", Interrupted())
        core.news([0], waiting)
    while not core.news([0], waiting):
        pass


def test_a_forked_process_is_told_that_it_needs_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's kernels, or those in C, it would wait for threads that it does not have."""
    core = SharedCore(engine_of(), room=16)
    monkeypatch.setattr("os.getpid", lambda: 1)
    with pytest.raises(EngineError, match="load one in each, or spawn them"):
        core.news([0], waiting_for(add(0, 3, 1, 9)))

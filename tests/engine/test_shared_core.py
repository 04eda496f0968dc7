"""The core that threads share: each gets its news as it comes, whoever runs the steps."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from engine.batch import Batch, StepOutput
from engine.config import EngineConfig
from engine.core import Core
from engine.errors import EngineError
from engine.library.shared import SharedCore
from engine.messages import TokenDrawn
from tests.engine.scheduling import LATE, add, assert_right, check, engine_of, run
from tests.fakes.runner import HashRunner, ready

THREADS, TOKENS = 8, 40


class _Leisurely(HashRunner):
    """A step takes a moment in which other threads run, as with a model."""

    def submit(self, batch: Batch) -> StepOutput:
        time.sleep(0.01)
        return super().submit(batch)


def test_no_thread_steps_on_while_the_others_wait_for_what_is_there() -> None:
    core = SharedCore(Core(EngineConfig("none", block_size=4), _Leisurely(ready())), room=THREADS)

    def streams(group: int) -> list[int]:
        """How many tokens each piece of news has brought."""
        waiting, brought = deque([add(group, 3, 1, TOKENS)]), list[int]()
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
    core, mine, beside = SharedCore(engine, room=16), [0], deque([add(1, 3, 1, 9)])
    core.news([1], beside)

    name = "result" if late else "submit"
    runs = getattr(engine._runner, name)

    def interrupted(*given: object) -> None:
        runs(*given)
        raise KeyboardInterrupt

    waiting = deque([add(0, 3, 1, 9)])
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
    core, waiting = SharedCore(engine, room=16), deque([add(0, 3, 1, 9)])
    core.news([0], waiting)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine.scheduler, part, Mock(side_effect=KeyboardInterrupt))
        while True:
            core.news([0], waiting)
    core.leave([0])
    with pytest.raises(EngineError, match="interrupted in a step"):
        core.news([1], deque([add(1, 3, 1, 9)]))

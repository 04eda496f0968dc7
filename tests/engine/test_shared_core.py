"""The core that threads share: each gets its news as it comes, whoever runs the steps."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from engine.batch import Batch, StepOutput
from engine.config import EngineConfig
from engine.core import Core
from engine.library.shared import SharedCore
from engine.messages import TokenDrawn
from tests.engine.scheduling import add
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

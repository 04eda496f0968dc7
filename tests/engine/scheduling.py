"""An engine with a runner without a model, stepped by hand and checked after every step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from engine.config import EngineConfig
from engine.core import Core
from engine.messages import Add, Embed, Embedded, Logprobs, Sampling, Started, StepDone
from engine.sequence import State
from tests.fakes.late_runner import LateRunner
from tests.fakes.runner import HashRunner, expected, hidden, ready, score, slots_of

MAX_MODEL_LEN = 200
ADAPTERS = ("a", "b", "pirate")

LATE: Callable[[int], bool] = lambda _: False  # noqa: E731
"""For engine_of: steps overlap, and none runs before its result is requested."""


def engine_of(
    blocks: int = 256,
    *,
    tokens: int = 64,
    sequences: int = 16,
    block_size: int = 4,
    length: int = MAX_MODEL_LEN,
    queue: int = 10_000,
    cache: bool = False,
    early: Callable[[int], bool] | None = None,
) -> Core:
    """Return an engine with a pool of its own, by default without the prefix cache.

    early: if given, steps overlap, and those for which it is True run early (LateRunner); then everything is checked at
    every call of the runner.
    """
    config = EngineConfig(
        "none",
        max_batch_tokens=tokens,
        max_sequences=sequences,
        max_queue=queue,
        share_gate=0,
        block_size=block_size,
        prefix_cache=cache,
        adapters=tuple([(name, "a-folder") for name in ADAPTERS]),
    )
    about = ready(blocks=blocks, block_size=block_size, max_model_len=length)
    if early is None:
        return Core(config, HashRunner(about))
    runner = LateRunner(about, early)
    engine = Core(config, runner)
    runner.between = partial(check, engine)
    return engine


def add(group: int, prompt: int, n: int, new: int, *, seed: int = 0, stops: frozenset[int] = frozenset()) -> Add:
    """Return a group with a prompt of its own."""
    tokens = tuple((group * 31 + position * 7) % 1000 for position in range(prompt))
    return Add.alike(group, tokens, n, seed, new, Sampling(), stops)


def follow(group: int, prompt: tuple[int, ...], n: int = 1, new: int = 4, *, salt: str = "") -> Add:
    """Return a group with this prompt."""
    return replace(Add.alike(group, prompt, n, 0, new, Sampling(), frozenset()), salt=salt)


def check(engine: Core) -> None:
    """Assert that the pool's counts, the queues' order and the states are consistent."""
    scheduler = engine.scheduler
    running, waiting = scheduler.running, scheduler.queue.waiting
    queued = running + waiting
    scheduler.pool.check_integrity(sequence.blocks for sequence in queued)
    for queue in (running, waiting):
        assert [one.age for one in queue] == sorted(one.age for one in queue)
    assert all(one.state in (State.PREFILL, State.DECODE) for one in running)
    assert all(one.state is State.WAITING and not one.blocks for one in waiting)
    assert len({id(one) for one in queued}) == len(queued)
    assert all(one.group.overtaken <= len(one.group.sequences) for one in queued)
    under_way = Counter(draw.sequence for flight in scheduler._flights for draw in flight.batch.draws)
    assert all(one.in_flight == under_way[one.id] for one in queued)
    assert len(scheduler._flights) <= 2
    before: dict[int, int] = {}  # the block before each block, which must be the same in every table
    for one in running:
        for left, right in zip((-1, *one.blocks), one.blocks, strict=False):
            assert before.setdefault(right, left) == left, "a block stands behind two different pasts"


class Answers:
    """The results of all steps of an engine, collected by (group, choice)."""

    def __init__(self, engine: Core) -> None:
        self.engine = engine
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.logprobs: dict[tuple[int, int], list[Logprobs | None]] = defaultdict(list)
        self.finish: dict[tuple[int, int], str] = {}
        self.failed: dict[int, str] = {}
        self.started: dict[int, Started] = {}
        self.embedded: dict[int, Embedded] = {}
        self.steps: list[StepDone] = []

    def step(self) -> StepDone:
        """Make one step, check it, and collect its results."""
        done = self.engine.step()
        check(self.engine)
        for one in done.started:
            assert one.group not in self.started, "a group has started twice"
            self.started[one.group] = one
        for drawn in done.tokens:
            key = drawn.group, drawn.choice
            assert key not in self.finish, "a token after the finish"
            assert drawn.group in self.started, "a token before the start"
            self.tokens[key].append(drawn.token)
            self.logprobs[key].append(drawn.logprobs)
            if drawn.finish is not None:
                self.finish[key] = drawn.finish
        for vector in done.embedded:
            assert vector.group not in self.embedded, "two answers to one Embed"
            self.embedded[vector.group] = vector
        self.failed |= {failed.group: failed.message for failed in done.failed}
        self.steps.append(done)
        return done

    def finish_all(self, most: int = 3000) -> Answers:
        """Step until there is nothing left to do."""
        while self.engine.has_work:
            most -= 1
            assert most > 0, "the engine does not come to an end"
            self.step()
        return self

    def step_of(self, group: int, choice: int = 0) -> int:
        """Return the number of the step in which a choice got its first token."""
        return next(
            number
            for number, done in enumerate(self.steps)
            if any((drawn.group, drawn.choice) == (group, choice) for drawn in done.tokens)
        )


def run(engine: Core, *adds: Add | Embed) -> Answers:
    """Add these and step to the end."""
    for one in adds:
        engine.add(one)
    return Answers(engine).finish_all()


def assert_right(answers: Answers, one: Add, new: int | None = None) -> None:
    """Assert that each choice of a group has ended correctly, with the tokens of an engine without blocks."""
    for choice, asked in enumerate(one.choices):
        tokens = answers.tokens[one.group, choice]
        assert_tokens(answers, one, choice)
        if answers.finish[one.group, choice] == "length":
            assert len(tokens) == (new or asked.max_tokens)
        else:
            assert tokens[-1] in one.stop_tokens


def assert_tokens(answers: Answers, one: Add, choice: int) -> None:
    """Assert that a choice's tokens so far, and the log probabilities of these and of its prompt, are as expected."""
    asked, tokens = one.choices[choice], answers.tokens[one.group, choice]
    least = asked.sampling.min_tokens
    assert tokens == expected(
        one.prompt, asked.seed, len(tokens), adapter=one.adapter, stops=one.stop_tokens, min_tokens=least
    )
    assert not one.stop_tokens & set(tokens[:-1])
    assert len(tokens) > least or not one.stop_tokens & set(tokens)
    asked_for = one.logprobs is not None
    assert answers.logprobs[one.group, choice] == [score(token) if asked_for else None for token in tokens]
    if tokens:
        scores = answers.started[one.group].prompt_logprobs
        if one.prompt_logprobs is None:
            assert scores is None
        else:
            slots = slots_of(one.prompt, one.adapter)
            rest = zip(slots[:-1], one.prompt[1:], strict=True)
            assert scores == (None, *[score(slot, token) for slot, token in rest])


def vector_of(one: Embed) -> tuple[float, ...]:
    """Return the vector that an Embed must get."""
    slots = slots_of(one.prompt, one.adapter)
    if one.pooling == "last":
        return hidden(slots[-1:])
    return tuple(value / len(slots) for value in hidden(slots))

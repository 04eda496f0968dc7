"""Everything at random over too few blocks: every token is right, every count returns to zero, nobody starves."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine import admission
from engine.messages import Abort, Add, Choice, Embed, Sampling
from tests.engine.scheduling import Answers, add, assert_tokens, check, engine_of, vector_of
from tests.fakes.late_runner import LateRunner

BLOCKS, CHOICES = 20, 6
EARLY: list[Callable[[int], bool]] = [lambda _: False, lambda _: True, lambda number: number % 3 == 0]


class Walk:
    """An engine under random traffic, and what it was asked for."""

    def __init__(self, *, cache: bool, seed: int, early: Callable[[int], bool] | None = None) -> None:
        self.random = random.Random(seed)
        self.engine = engine_of(BLOCKS, tokens=20, sequences=CHOICES, cache=cache, early=early)
        self.answers = Answers(self.engine)
        self.adds: dict[int, Add] = {}
        self.embeds: dict[int, Embed] = {}
        self.aborted: set[tuple[int, int]] = set()
        self.arrived: dict[int, int] = {}  # by group, the step it came before
        # Prompts that begin alike, and now and then end alike.
        self.beginnings = [tuple(self.random.choices(range(1000), k=24)) for _ in range(2)]

    def prompt(self) -> tuple[int, ...]:
        beginning = self.random.choice(self.beginnings)[: self.random.randint(0, 24)]
        return (*beginning, *self.random.choices(range(1000), k=self.random.choice([1, 1, 4, 12])))

    def ask(self) -> None:
        group = len(self.arrived)
        self.arrived[group] = len(self.answers.steps)
        salt, adapter = self.random.choice(["", "", "mine"]), self.random.choice([None, None, "pirate"])
        if self.random.random() < 0.15:
            embed = Embed(group, self.prompt(), self.random.choice(["mean", "last"]), salt, adapter)
            self.embeds[group] = embed
            self.engine.add(embed)
            return
        choices = [self.choice() for _ in range(self.random.randint(1, CHOICES))]
        self.adds[group] = Add(
            group,
            self.prompt(),
            tuple(choices),
            stop_tokens=frozenset(range(0, 1000, self.random.choice([25, 999]))),
            logprobs=self.random.choice([None, None, 2]),
            prompt_logprobs=self.random.choice([None, None, None, 1]),
            salt=salt,
            adapter=adapter,
        )
        self.engine.add(self.adds[group])

    def choice(self) -> Choice:
        penalty = self.random.choice([1.0, 1.0, 1.2])  # the runner knows of none, but such a draw needs its past
        sampling = Sampling(min_tokens=self.random.choice([0, 0, 3]), repetition_penalty=penalty)
        return Choice(self.random.randrange(3), self.random.randint(1, 40), sampling)

    def abort(self) -> None:
        group = self.random.randrange(len(self.arrived))
        width = len(self.adds[group].choices) if group in self.adds else 1
        choices = None if self.random.random() < 0.5 else tuple(self.random.choices(range(width), k=width))
        self.engine.abort(Abort(group, choices))
        self.aborted |= {(group, choice) for choice in (range(width) if choices is None else choices)}

    def check(self) -> None:
        """Everything has come to its end, and what it had to be."""
        stats = self.engine.stats()
        assert (stats.blocks_used, stats.blocks_shared, stats.running, stats.waiting) == (0, 0, 0, 0)
        assert stats.blocks_free + stats.blocks_cached == BLOCKS
        self.aborted |= {(group, choice) for group in self.answers.failed for choice in range(CHOICES)}
        for embed in self.embeds.values():
            if embed.group in self.answers.embedded:
                assert self.answers.embedded[embed.group].vector == vector_of(embed)
            else:
                assert (embed.group, 0) in self.aborted
        for one in self.adds.values():
            for choice in range(len(one.choices)):
                assert_tokens(self.answers, one, choice)
                assert (one.group, choice) in self.answers.finish or (one.group, choice) in self.aborted

    def longest_wait(self) -> int:
        """Most steps between a group's arrival and its first token."""
        first: dict[int, int] = {}
        for number, done in enumerate(self.answers.steps):
            for drawn in done.tokens:
                first.setdefault(drawn.group, number)
        return max(number - self.arrived[group] for group, number in first.items())

    def go(self, groups: int) -> None:
        """Ask, abort and step until so many have come and gone."""
        while len(self.arrived) < groups:
            # Up to ten groups at once: how long one waits then says whether it is passed by for ever.
            if self.random.random() < 0.5 and self.engine.scheduler.living < 10 * CHOICES:
                self.ask()
            if self.arrived and self.random.random() < 0.1:
                self.abort()
            self.answers.step()
        self.answers.finish_all()
        self.check()


@pytest.mark.parametrize("cache", [False, True])
def test_hundreds_of_requests_over_twenty_blocks(cache: bool) -> None:
    walk = Walk(cache=cache, seed=11)
    walk.go(500)
    assert not walk.answers.failed
    stats = walk.engine.stats()
    assert stats.preemptions > 200
    assert stats.forks > 500
    assert (stats.prefix_cache_hits > 200) == cache
    assert walk.longest_wait() < len(walk.answers.steps) / 5


@pytest.mark.parametrize("early", EARLY, ids=["late", "early", "now and then"])
@pytest.mark.parametrize("cache", [False, True])
def test_the_same_with_steps_that_overlap(cache: bool, early: Callable[[int], bool]) -> None:
    walk = Walk(cache=cache, seed=12, early=early)
    runner, scheduler, preempted = walk.engine._runner, walk.engine.scheduler, 0
    assert isinstance(runner, LateRunner)

    def look() -> None:
        nonlocal preempted
        check(walk.engine)
        preempted += sum([one.in_flight for one in scheduler.queue.waiting])

    runner.between = look
    walk.go(200)
    assert not walk.answers.failed
    stats = walk.engine.stats()
    assert stats.preemptions > 50
    assert stats.forks > 200
    assert (stats.prefix_cache_hits > 80) == cache
    assert walk.longest_wait() < len(walk.answers.steps) / 5
    assert preempted > 10  # with a token under way
    drawn = sum([len(batch.draws) for batch in runner.given])
    assert 0.9 * drawn < stats.tokens_drawn < drawn  # some in vain


@pytest.mark.parametrize("early", [None, *EARLY], ids=["by itself", "late", "early", "now and then"])
@pytest.mark.parametrize("cache", [False, True])
def test_the_same_with_leaders_that_start_alone(
    cache: bool, early: Callable[[int], bool] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "PATIENCE", 2)
    monkeypatch.setattr(admission, "LONG_PATIENCE", 4)
    walk = Walk(cache=cache, seed=13, early=early)
    walk.go(200)
    assert not walk.answers.failed
    stats = walk.engine.stats()
    assert stats.preemptions > 200
    assert stats.forks < 40  # instead of more than 200
    assert walk.longest_wait() < len(walk.answers.steps) / 5


@pytest.mark.parametrize("cache", [False, True])
def test_steps_that_fail_beside_others_that_do_not(cache: bool) -> None:
    walk = Walk(cache=cache, seed=12, early=EARLY[2])
    runner = walk.engine._runner
    assert isinstance(runner, LateRunner)
    # Two in a row at most; the one behind a failure is under way, and the others' part of it is right.
    runner.failing_late = {number for number in range(9999) if number % 90 in (3, 40, 41)}
    runner.refusing = set(range(70, 9999, 90))
    walk.go(200)
    assert len(walk.answers.failed) > 40
    assert len(walk.answers.finish) > 200


@pytest.mark.parametrize("seed", range(40))
def test_steps_that_are_refused_while_sequences_give_way(seed: int) -> None:
    """One that gave way, with a token under way, comes in again when that is known: later, where a step was refused."""
    draw = random.Random(seed)
    engine = engine_of(draw.randint(10, 18), sequences=8, cache=draw.random() < 0.5, early=EARLY[seed % len(EARLY)])
    runner = engine._runner
    assert isinstance(runner, LateRunner)
    numbers = sorted(draw.sample(range(3, 60), 12))
    runner.refusing = {number for number, before in zip(numbers, [0, *numbers], strict=False) if number - before > 1}
    answers = Answers(engine)
    for group in range(8):
        engine.add(add(group, draw.randint(3, 14), draw.randint(1, 2), draw.randint(5, 20), seed=group))
    for _ in range(600):
        if not engine.has_work:
            break
        answers.step()
    assert not engine.has_work


# The same, shrunk to the shortest way to a failure


class EngineMachine(RuleBasedStateMachine):
    """Adds, aborts and steps in any order over a small pool, with the prefix cache or without, overlapping or not.

    Every token is right, every count returns to 0.
    """

    @initialize(cache=st.booleans(), early=st.sampled_from([None, *EARLY]))
    def begin(self, cache: bool, early: Callable[[int], bool] | None) -> None:
        self.engine = engine_of(24, tokens=20, sequences=6, cache=cache, early=early)
        self.answers = Answers(self.engine)
        self.adds: dict[int, Add] = {}
        self.aborted: set[tuple[int, int]] = set()

    @rule(
        prompt=st.integers(1, 40),
        alike=st.integers(0, 2),
        new=st.lists(st.integers(1, 40), min_size=1, max_size=6),
        seed=st.integers(0, 9),
    )
    def add(self, prompt: int, alike: int, new: list[int], seed: int) -> None:
        like = add(alike, prompt, len(new), 1, seed=seed, stops=frozenset(range(20)))
        choices = [replace(choice, max_tokens=most) for choice, most in zip(like.choices, new, strict=True)]
        one = replace(like, group=len(self.adds), choices=tuple(choices))
        self.adds[one.group] = one
        self.engine.add(one)

    @precondition(lambda self: self.adds)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(list(self.adds.values())))
        choices = data.draw(st.none() | st.sets(st.integers(0, len(one.choices) - 1)).map(tuple))
        self.engine.abort(Abort(one.group, choices))
        self.aborted |= {(one.group, choice) for choice in (range(len(one.choices)) if choices is None else choices)}

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.answers.step()

    @invariant()
    def agrees(self) -> None:
        check(self.engine)

    def teardown(self) -> None:
        self.answers.finish_all()
        stats = self.engine.stats()
        assert (stats.blocks_used, stats.blocks_shared, stats.running, stats.waiting) == (0, 0, 0, 0)
        assert stats.blocks_free + stats.blocks_cached == 24
        for one in self.adds.values():
            for choice in range(len(one.choices)):
                assert_tokens(self.answers, one, choice)
                ended = (one.group, choice) in self.answers.finish
                assert ended or (one.group, choice) in self.aborted or one.group in self.answers.failed


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=100, stateful_step_count=30)

"""Everything at random over too few blocks: every token is right, every count returns to zero, nobody starves."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.messages import Abort, Add, Choice, Embed, Sampling
from tests.engine.scheduling import Answers, add, assert_tokens, check, engine_of, vector_of

BLOCKS, CHOICES = 20, 6


class Walk:
    """An engine under random traffic, and what it was asked for."""

    def __init__(self, *, cache: bool, seed: int, late: bool) -> None:
        self.random = random.Random(seed)
        self.engine = engine_of(
            BLOCKS, tokens=20, sequences=CHOICES, cache=cache, late=(lambda n: n % 3 == 0) if late else None
        )
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
        sampling = Sampling(min_tokens=self.random.choice([0, 0, 3]))
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
        assert not self.answers.failed
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


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("cache", [False, True])
def test_hundreds_of_requests_over_twenty_blocks(cache: bool, late: bool) -> None:
    walk = Walk(cache=cache, seed=11, late=late)
    while len(walk.arrived) < 500:
        # Up to ten groups at once: how long one waits then says whether it is passed by for ever.
        if walk.random.random() < 0.5 and walk.engine.scheduler.living < 10 * CHOICES:
            walk.ask()
        if walk.arrived and walk.random.random() < 0.1:
            walk.abort()
        walk.answers.step()
    walk.answers.finish_all()
    walk.check()
    stats = walk.engine.stats()
    assert stats.preemptions > 200
    assert stats.forks > 500
    assert (stats.prefix_cache_hits > 200) == cache
    assert walk.longest_wait() < len(walk.answers.steps) / 5


# The same, shrunk to the shortest way to a failure


class EngineMachine(RuleBasedStateMachine):
    """Adds, aborts and steps in any order over a small pool: every token is right, every count returns to 0."""

    cache = False

    def __init__(self) -> None:
        super().__init__()
        self.engine = engine_of(24, tokens=20, sequences=6, cache=self.cache)
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


class CachingMachine(EngineMachine):
    """The same with the prefix cache."""

    cache = True


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=40, stateful_step_count=30)
TestCaching = CachingMachine.TestCase
TestCaching.settings = settings(max_examples=40, stateful_step_count=30)

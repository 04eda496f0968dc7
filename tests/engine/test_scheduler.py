"""The scheduler through the engine: forks, chunks, room, fairness, ends. The runner's tokens prove the KV."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.config import EngineConfig
from engine.core import Core
from engine.messages import Abort, Add, Sampling, StepDone
from engine.sequence import State
from tests.fakes.runner import HashRunner, expected, ready

MAX_MODEL_LEN = 200


def engine_of(
    blocks: int = 256, *, tokens: int = 64, sequences: int = 16, block_size: int = 4, length: int = MAX_MODEL_LEN
) -> Core:
    config = EngineConfig("none", max_batch_tokens=tokens, max_sequences=sequences, share_gate=0, block_size=block_size)
    return Core(config, HashRunner(ready(blocks=blocks, block_size=block_size, max_model_len=length)))


def add(group: int, prompt: int, n: int, new: int, *, seed: int = 0, stops: frozenset[int] = frozenset()) -> Add:
    tokens = tuple((group * 31 + position * 7) % 1000 for position in range(prompt))
    return Add.alike(group, tokens, n, seed, new, Sampling(), stops)


def check(engine: Core) -> None:
    scheduler = engine.scheduler
    queued = scheduler.running + scheduler.waiting
    scheduler.pool.check_integrity(sequence.blocks for sequence in queued)
    for queue in (scheduler.running, scheduler.waiting):
        assert [one.order for one in queue] == sorted(one.order for one in queue)
    assert all(one.state in (State.PREFILL, State.DECODE) for one in scheduler.running)
    assert all(one.state is State.WAITING and not one.blocks for one in scheduler.waiting)
    assert len({id(one) for one in queued}) == len(queued)


class Answers:
    """All steps' outcomes of an engine, gathered by (group, choice)."""

    def __init__(self, engine: Core) -> None:
        self.engine = engine
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.finish: dict[tuple[int, int], str] = {}
        self.failed: dict[int, str] = {}
        self.steps: list[StepDone] = []

    def step(self) -> StepDone:
        done = self.engine.step()
        check(self.engine)
        for drawn in done.tokens:
            key = drawn.group, drawn.choice
            assert key not in self.finish, "a token after the finish"
            self.tokens[key].append(drawn.token)
            if drawn.finish is not None:
                self.finish[key] = drawn.finish
        self.failed |= {failed.group: failed.message for failed in done.failed}
        self.steps.append(done)
        return done

    def finish_all(self, most: int = 3000) -> Answers:
        while self.engine.has_work:
            most -= 1
            assert most > 0, "the engine does not come to an end"
            self.step()
        return self


def run(engine: Core, *adds: Add) -> Answers:
    for one in adds:
        engine.add(one)
    return Answers(engine).finish_all()


def assert_right(answers: Answers, one: Add, new: int | None = None) -> None:
    for choice, asked in enumerate(one.choices):
        tokens = answers.tokens[one.group, choice]
        assert tokens == expected(one.prompt, asked.seed, len(tokens))
        if answers.finish[one.group, choice] == "length":
            assert len(tokens) == (new or asked.max_tokens)
            assert not one.stop_tokens & set(tokens[:-1])
        else:
            assert tokens[-1] in one.stop_tokens
            assert not one.stop_tokens & set(tokens[:-1])


# Fork


def test_all_choices_leave_prefill_in_the_same_step() -> None:
    engine = engine_of(tokens=24)
    engine.add(add(1, 30, 8, 4))  # two chunks: 24 and 6
    answers = Answers(engine)
    assert answers.step().tokens == ()
    first = answers.step()
    assert [(drawn.group, drawn.choice) for drawn in first.tokens] == [(1, choice) for choice in range(8)]
    assert first.stats.forks == 7
    assert answers.finish_all().finish == {(1, choice): "length" for choice in range(8)}


def test_the_prompt_is_computed_once_for_all_choices() -> None:
    answers = run(engine_of(), add(1, 30, 8, 6), add(2, 9, 1, 3))
    assert answers.steps[-1].stats.prompt_tokens_computed == 39
    assert answers.steps[-1].stats.tokens_drawn == 8 * 6 + 3


def test_full_blocks_are_shared_and_the_last_one_is_copied_by_all_but_one() -> None:
    engine = engine_of()
    engine.add(add(1, 10, 3, 8))  # blocks of 4: two full, one of 2
    answers = Answers(engine)
    answers.step()
    assert (engine.scheduler.pool.used, engine.scheduler.pool.shared) == (3, 3)
    done = answers.step()
    assert (engine.scheduler.pool.used, engine.scheduler.pool.shared) == (5, 2)
    assert done.stats.block_copies == 2
    answers.finish_all()


def test_a_prompt_of_whole_blocks_needs_no_copy() -> None:
    answers = run(engine_of(), add(1, 12, 4, 9))
    assert answers.steps[-1].stats.block_copies == 0


@given(prompt=st.integers(1, 40), n=st.integers(1, 12), new=st.integers(1, 30), block_size=st.integers(1, 9))
def test_peak_blocks_stay_within_the_bound(prompt: int, n: int, new: int, block_size: int) -> None:
    engine = engine_of(1000, tokens=30, sequences=12, block_size=block_size)
    one = add(1, prompt, n, new)
    answers = run(engine, one)
    bound = prompt // block_size + n * -(-(prompt % block_size + new) // block_size) + 1
    assert answers.steps[-1].stats.peak_blocks <= bound
    assert_right(answers, one)


def test_peak_of_32_choices_over_509_tokens() -> None:
    engine = engine_of(1000, tokens=1024, sequences=256, block_size=16, length=2048)
    answers = run(engine, add(1, 509, 32, 61))
    assert answers.steps[-1].stats.peak_blocks <= 31 + 32 * 5 + 1
    assert answers.steps[-1].stats.prompt_tokens_computed == 509
    stats = answers.steps[-1].stats
    assert stats.kv_bytes_read < stats.kv_bytes_unshared / 6


# Seeds


def test_n_choices_equal_n_singles_with_following_seeds() -> None:
    together = run(engine_of(), add(1, 17, 4, 20, seed=5))
    prompt = add(1, 17, 4, 20).prompt
    singles = run(engine_of(), *(Add.alike(9 + i, prompt, 1, 5 + i, 20, Sampling(), frozenset()) for i in range(4)))
    assert [together.tokens[1, i] for i in range(4)] == [singles.tokens[9 + i, 0] for i in range(4)]
    assert len({tuple(tokens) for tokens in together.tokens.values()}) == 4


def test_seeds_wrap_to_int64() -> None:
    engine = engine_of()
    one = add(1, 5, 2, 3, seed=2**63 - 1)
    answers = run(engine, one)
    assert answers.tokens[1, 0] == expected(one.prompt, 2**63 - 1, 3)
    assert answers.tokens[1, 1] == expected(one.prompt, -(2**63), 3)


groups = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 6), st.integers(1, 25), st.integers(0, 10)), min_size=1, max_size=8
)


@given(wanted=groups, blocks=st.integers(16, 60), stops=st.sampled_from([frozenset(), frozenset(range(60))]))
def test_traffic_and_preemption_change_no_token(
    wanted: list[tuple[int, int, int, int]], blocks: int, stops: frozenset[int]
) -> None:
    engine = engine_of(blocks, tokens=24, sequences=8)
    adds = [add(g, p, n, new, seed=seed, stops=stops) for g, (p, n, new, seed) in enumerate(wanted)]
    answers = run(engine, *adds)
    assert not answers.failed
    for one in adds:
        assert_right(answers, one)
    stats = answers.steps[-1].stats
    assert (stats.blocks_used, stats.blocks_free, stats.running, stats.waiting) == (0, blocks, 0, 0)


# Room


def until_preempted(engine: Core, one: Add) -> Answers:
    engine.add(one)
    answers = Answers(engine)
    while not answers.step().stats.preemptions:
        pass
    return answers


def test_the_youngest_gives_way_and_the_oldest_goes_through() -> None:
    engine = engine_of(12, sequences=4)
    one = add(1, 16, 3, 24)  # 4 blocks of prompt, 3 times 6 of their own: 22 are not there
    answers = until_preempted(engine, one)
    assert [sequence.choice for sequence in engine.scheduler.waiting] == [2]
    answers.finish_all()
    assert_right(answers, one)
    ends = {drawn.choice: number for number, done in enumerate(answers.steps) for drawn in done.tokens}
    assert ends[0] < ends[1] <= ends[2]


@pytest.mark.parametrize(("prompt", "again"), [(16, 0), (18, 2)])
def test_a_recomputed_choice_shares_the_prompts_full_blocks_with_its_siblings(prompt: int, again: int) -> None:
    engine = engine_of(18, sequences=4)
    one = add(1, prompt, 3, 24)
    answers = until_preempted(engine, one)
    engine.abort(Abort(1, (1,)))  # makes room, while choice 0 keeps the prompt
    answers.finish_all()
    stats = answers.steps[-1].stats
    assert stats.preemptions == 1
    assert stats.prompt_tokens_computed == prompt + again
    assert [answers.tokens[1, choice] for choice in (0, 2)] == [expected(one.prompt, seed, 24) for seed in (0, 2)]


@pytest.mark.parametrize("blocks", range(12, 40))
def test_any_pool_size_serves_a_fork_beside_growing_neighbours(blocks: int) -> None:
    """The fork comes some steps after its admission, and its copies must be counted exactly then."""
    engine = engine_of(blocks, tokens=12, sequences=8)
    adds = [add(1, 3, 2, 30), add(2, 22, 4, 9), add(3, 7, 3, 12)]
    engine.add(adds[0])
    answers = Answers(engine)
    answers.step()
    answers.step()
    for one in adds[1:]:
        engine.add(one)
    answers.finish_all()
    for one in adds:
        assert_right(answers, one)


def test_preempted_siblings_compute_their_prompt_once_again_and_not_each() -> None:
    engine = engine_of(22, tokens=20, sequences=4)
    old, young = add(1, 4, 1, 70), add(2, 36, 3, 25)
    engine.add(old)
    answers = Answers(engine)
    answers.step()
    engine.add(young)
    while any(sequence.group.id == 2 for sequence in engine.scheduler.running) or not answers.tokens[2, 0]:
        answers.step()
    preempted = answers.steps[-1].stats
    assert preempted.preemptions >= 3
    answers.finish_all()
    assert_right(answers, old)
    assert_right(answers, young)


def drew(answers: Answers, group: int, choice: int, number: int) -> bool:
    return any((drawn.group, drawn.choice) == (group, choice) for drawn in answers.steps[number].tokens)


def test_a_preempted_sequence_is_not_overtaken() -> None:
    engine = engine_of(15, sequences=4)
    old, new = add(1, 16, 3, 24), add(2, 2, 1, 1)
    answers = until_preempted(engine, old)
    assert engine.scheduler.pool.free == 3  # enough for the new one, not for the preempted one
    before = len(answers.steps)
    engine.add(new)
    answers.finish_all()
    later = range(before, len(answers.steps))
    resumed = next(number for number in later if drew(answers, 1, 2, number))
    arrived = next(number for number in later if drew(answers, 2, 0, number))
    assert resumed <= arrived


def test_a_group_in_prefill_gives_way_whole() -> None:
    engine = engine_of(13, tokens=8, sequences=4)
    old, young = add(1, 8, 2, 16), add(2, 26, 2, 2)
    engine.add(old)
    answers = Answers(engine)
    answers.step()
    engine.add(young)
    answers.finish_all()
    assert_right(answers, old)
    assert_right(answers, young)


def test_decoding_goes_on_beside_a_long_prompt() -> None:
    engine = engine_of(tokens=20)
    engine.add(add(1, 4, 2, 40))
    answers = Answers(engine)
    answers.step()
    engine.add(add(2, 100, 1, 2))
    while not answers.tokens[2, 0]:
        assert len(answers.step().tokens) >= 2
    chunks = [chunk for batch in answers.engine._runner.batches for chunk in batch.chunks][1:]  # type: ignore[attr-defined]
    assert [chunk.start for chunk in chunks] == [0, 16, 32, 48, 64, 80, 96]
    assert all(len(batch.rows) + sum(len(chunk.tokens) for chunk in batch.chunks) <= 20
               for batch in answers.engine._runner.batches)  # type: ignore[attr-defined]  # fmt: skip


def test_a_prompt_is_let_in_only_with_a_first_block_for_every_choice() -> None:
    engine = engine_of(10, sequences=8)
    engine.add(add(1, 6, 1, 30))
    answers = Answers(engine)
    answers.step()
    assert engine.scheduler.pool.free == 8
    engine.add(add(2, 8, 6, 2))  # 2 blocks of prompt and 6 first ones: 8, and one is kept for the other group
    answers.step()
    assert len(engine.scheduler.waiting) == 1
    answers.finish_all()
    assert answers.steps[-1].stats.preemptions == 0


# Fairness


def admitted(answers: Answers) -> list[int]:
    order: list[int] = []
    for done in answers.steps:
        order += [group for group in sorted({drawn.group for drawn in done.tokens}) if group not in order]
    return order


def test_first_come_first_served() -> None:
    assert admitted(run(engine_of(tokens=16, sequences=4), *(add(g, 16, 2, 5) for g in range(6)))) == list(range(6))


def test_a_narrow_request_passes_a_wide_one_that_has_to_wait() -> None:
    answers = run(engine_of(), add(1, 5, 10, 30), add(2, 5, 16, 5), add(3, 5, 1, 5))
    assert admitted(answers) == [1, 3, 2]


def test_a_wide_request_is_passed_by_no_more_sequences_than_it_has() -> None:
    narrow = [add(10 + number, 5, 1, 6 + number % 5) for number in range(60)]
    order = admitted(run(engine_of(), add(1, 5, 4, 9), add(2, 5, 16, 5), *narrow))
    assert order.index(2) <= 1 + 16


def test_streams_of_wide_requests_do_not_starve_a_single_one() -> None:
    engine = engine_of()
    answers = Answers(engine)
    for group in range(4):
        engine.add(add(group, 5, 16, 20))
    engine.add(add(99, 5, 1, 3))
    for group in range(4, 30):
        engine.add(add(group, 5, 16, 20))
    answers.finish_all()
    assert admitted(answers).index(99) <= 4


# Refusals


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (add(1, 5, 17, 3), "n=17 is more than the 16 sequences"),
        (add(1, MAX_MODEL_LEN, 1, 3), "the prompt has 200 tokens; the model takes 200"),
        (add(1, 40, 15, 3), "needs 25 blocks of 4 tokens of KV cache; there are 20"),
        (add(1, 10, 1, 80), "needs 23 blocks"),
        (add(1, 0, 1, 3), "at least one token"),
        (add(1, 5, 0, 3), "one choice"),
        (add(1, 5, 1, 0), "one new token"),
    ],
)
def test_what_can_never_run_is_refused(one: Add, message: str) -> None:
    engine = engine_of(20)
    engine.add(one)
    assert engine.has_work
    answers = Answers(engine).finish_all()
    assert message in answers.failed[1]
    assert all(failed.kind == "refused" for done in answers.steps for failed in done.failed)
    assert not answers.tokens
    assert not engine.has_work


def test_a_group_that_just_fits_is_served() -> None:
    one = add(1, 40, 10, 3)  # 10 blocks of prompt and 10 first ones
    assert_right(run(engine_of(20), one), one)


# Ends


def test_every_choice_ends_by_itself() -> None:
    stops = frozenset(range(0, 1000, 40))
    one = add(1, 9, 8, 40, stops=stops)
    answers = run(engine_of(), one)
    assert_right(answers, one)
    assert set(answers.finish.values()) == {"stop", "length"}
    assert len({len(tokens) for tokens in answers.tokens.values()}) > 3


def test_a_finished_choice_frees_its_own_blocks_at_once() -> None:
    engine = engine_of()
    one = add(1, 8, 4, 40, stops=frozenset(range(0, 1000, 12)))
    engine.add(one)
    answers = Answers(engine)
    while len(answers.finish) < 4:
        answers.step()
        assert engine.scheduler.pool.used <= 2 + 10 * (4 - len(answers.finish))
    assert engine.scheduler.pool.used == 0


def test_the_models_length_ends_a_choice() -> None:
    one = add(1, 190, 2, 50)
    answers = run(engine_of(), one)
    assert_right(answers, one, new=10)
    assert set(answers.finish.values()) == {"length"}


def test_one_new_token_needs_no_decoding() -> None:
    one = add(1, 9, 5, 1)
    engine = engine_of()
    answers = run(engine, one)
    assert len(answers.steps) == 1
    assert_right(answers, one)
    assert answers.steps[-1].stats.blocks_used == 0


# Aborts


def test_an_abort_before_the_first_step() -> None:
    engine = engine_of()
    engine.add(add(1, 9, 5, 4))
    engine.abort(Abort(1))
    assert engine.has_work, "the counts are still to be told"
    answers = Answers(engine).finish_all()
    assert (answers.tokens, len(answers.steps)) == ({}, 1)


def test_an_aborted_leader_hands_its_prompt_on() -> None:
    engine = engine_of(tokens=16 + 4)
    one = add(1, 50, 4, 5)
    engine.add(one)
    answers = Answers(engine)
    answers.step()
    engine.abort(Abort(1, (0,)))
    check(engine)
    answers.step()
    engine.abort(Abort(1, (1, 3)))
    check(engine)
    answers.finish_all()
    assert set(answers.finish) == {(1, 2)}
    assert answers.tokens[1, 2] == expected(one.prompt, 2, 5)
    assert answers.steps[-1].stats.prompt_tokens_computed == 50


def test_an_abort_while_decoding_frees_everything() -> None:
    engine = engine_of()
    engine.add(add(1, 9, 5, 40))
    answers = Answers(engine)
    answers.step()
    answers.step()
    engine.abort(Abort(1))
    assert engine.scheduler.pool.used == 0
    assert answers.step().stats.blocks_used == 0
    assert not engine.has_work


def test_an_unknown_group_is_ignored() -> None:
    engine = engine_of()
    engine.abort(Abort(7, (1,)))
    assert engine.step().tokens == ()
    assert not engine.has_work


# Everything at random


class EngineMachine(RuleBasedStateMachine):
    """Adds, aborts and steps in any order over a small pool: every token is right, every count returns to 0."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = engine_of(24, tokens=20, sequences=6)
        self.answers = Answers(self.engine)
        self.adds: dict[int, Add] = {}
        self.aborted: set[tuple[int, int]] = set()

    @rule(
        prompt=st.integers(1, 40),
        new=st.lists(st.integers(1, 40), min_size=1, max_size=6),
        seed=st.integers(0, 9),
    )
    def add(self, prompt: int, new: list[int], seed: int) -> None:
        alike = add(len(self.adds), prompt, len(new), 1, seed=seed, stops=frozenset(range(20)))
        choices = [replace(choice, max_tokens=most) for choice, most in zip(alike.choices, new, strict=True)]
        one = replace(alike, choices=tuple(choices))
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
        assert stats.blocks_free == 24
        for one in self.adds.values():
            for choice, asked in enumerate(one.choices):
                tokens = self.answers.tokens[one.group, choice]
                assert tokens == expected(one.prompt, asked.seed, len(tokens))
                ended = (one.group, choice) in self.answers.finish
                assert ended or (one.group, choice) in self.aborted or one.group in self.answers.failed


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=150, stateful_step_count=30)

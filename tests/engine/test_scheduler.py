"""The scheduler through the engine: forks, seeds, chunks, ends, aborts. The runner's tokens prove the KV."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Abort, Add, Sampling
from tests.engine.scheduling import Answers, add, assert_right, check, engine_of, run
from tests.fakes.runner import expected

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


@given(
    prompt=st.integers(1, 40),
    n=st.integers(1, 12),
    new=st.integers(1, 30),
    block_size=st.integers(1, 9),
    overlap=st.booleans(),
)
def test_peak_blocks_stay_within_the_bound(prompt: int, n: int, new: int, block_size: int, overlap: bool) -> None:
    engine = engine_of(1000, tokens=30, sequences=12, block_size=block_size, early=bool if overlap else None)
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


# Chunks


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

"""A step's draws as a whole: edits and draw together, log probabilities of what was drawn, and nothing unasked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.generation import logits_process as theirs

from engine.batch import Draw, Past, StepOutput
from engine.kernels import reference
from engine.messages import Logprobs, Sampling
from engine.sampling.sampler import Sampler
from tests.engine.sampling.mixtures import ROWS, VOCABULARY, Mixture, mixtures

PLAIN = Draw(sequence=0, seed=1, position=1, sampling=Sampling())


def _rows(count: int, vocabulary: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(4)) * spread


def _draw(number: int, *, past: Past | None = None, logprobs: int | None = None, **wanted: Any) -> Draw:
    banned = wanted.pop("banned", frozenset())
    return Draw(number, number, 7, Sampling(**wanted), past or Past((), []), banned, logprobs)


def _sample(
    logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int] | None = None, masks: Mapping[int, bytes] = {}
) -> StepOutput:
    return Sampler().sample(logits, range(len(logits)) if rows is None else rows, draws, masks)


def _chi_squared(tokens: Sequence[int], probabilities: torch.Tensor) -> float:
    """In deviations from the mean of what chance gives; tokens of probability 0 must not be there."""
    counts = torch.bincount(torch.tensor(tokens), minlength=len(probabilities)).double()
    assert not counts[probabilities == 0].any()
    expected = (probabilities * len(tokens))[probabilities > 0]
    assert expected.min() > 5
    found = ((counts[probabilities > 0] - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    return (float(found) - freedom) / math.sqrt(2 * freedom)


PEERS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "penalty": ({"repetition_penalty": 1.5}, [theirs.RepetitionPenaltyLogitsProcessor(1.5)]),
    "min-p": (
        {"min_p": 0.15, "temperature": 1.4},
        [theirs.TemperatureLogitsWarper(1.4), theirs.MinPLogitsWarper(0.15)],
    ),
    "all cuts": (
        {"min_p": 0.05, "top_k": 20, "top_p": 0.9, "temperature": 2.0},
        [
            theirs.TemperatureLogitsWarper(2.0),
            theirs.MinPLogitsWarper(0.05),
            theirs.TopKLogitsWarper(20),
            theirs.TopPLogitsWarper(0.9),
        ],
    ),
    "bias and bad words": (
        {"logit_bias": ((3, 2.0), (4, -1.0)), "bad_words": ((5,), (2, 6), (1, 7)), "temperature": 1.5},
        [
            theirs.NoBadWordsLogitsProcessor([[5], [2, 6], [1, 7]]),
            theirs.SequenceBiasLogitsProcessor([[[3], 2.0], [[4], -1.0]]),
            theirs.TemperatureLogitsWarper(1.5),
        ],
    ),
}


@pytest.mark.parametrize("name", PEERS)
def test_frequencies_are_the_distribution_that_transformers_makes(name: str) -> None:
    wanted, processors = PEERS[name]
    logits = _rows(1, 40, spread=1.0)
    past = Past((9, 8, 1), [2])
    expected, ids = logits.clone(), torch.tensor([[*past.prompt, *past.output]])
    for process in processors:
        expected = process(ids, expected)
    probabilities = expected[0].double().softmax(-1)
    tokens = [
        token for _, token in _sample(logits, [_draw(i, past=past, **wanted) for i in range(8000)], [0] * 8000).tokens
    ]
    assert _chi_squared(tokens, probabilities) < 4


def test_frequencies_under_penalties_and_a_mask() -> None:
    logits = _rows(1, 40, spread=1.0)
    past, mask = Past((9, 8, 1), [2, 2, 11]), b"\xff\xfe\x7f\xff"
    wanted: dict[str, Any] = {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
    draws = [_draw(i, past=past, **wanted) for i in range(8000)]
    row = reference.let_through(logits[0].double(), mask)
    probabilities = reference.penalize(row, past.prompt, past.output, 1.2, 0.3, 0.4).softmax(-1)
    output = _sample(logits, draws, [0] * 8000, dict.fromkeys(range(8000), mask))
    assert _chi_squared([token for _, token in output.tokens], probabilities) < 4


def test_edits_reach_greedy_draws() -> None:
    logits = _rows(3, 300)
    best = logits.argmax(-1).tolist()
    draws = [
        _draw(0, temperature=0.0, logit_bias=((7, 1000.0),)),
        _draw(1, temperature=0.0),
        _draw(2, temperature=0.0, banned=frozenset({best[2]})),
    ]
    second = int(logits[2].topk(2).indices[1])
    assert _sample(logits, draws).tokens == ((0, 7), (1, best[1]), (2, second))


def test_an_edit_that_changes_nothing_changes_no_draw() -> None:
    logits = _rows(32, 700)
    plain = [_draw(i) for i in range(32)]
    edited = [_draw(i, allowed_tokens=tuple(range(700)), bad_words=((1, 2),)) for i in range(32)]
    mixed = [edited[i] if i % 3 else plain[i] for i in range(32)]
    full = dict.fromkeys(range(0, 32, 5), b"\xff" * 88)
    expected = _sample(logits, plain).tokens
    assert _sample(logits, edited).tokens == _sample(logits, mixed).tokens == expected
    assert _sample(logits, mixed, masks=full).tokens == expected


NOTHING_LEFT: list[dict[str, Any]] = [
    {"allowed_tokens": ()},
    {"allowed_tokens": (50, 51)},  # the model has 50
    {"allowed_tokens": (5,), "bad_words": ((5,),)},
    {"allowed_tokens": (2, 3), "banned": frozenset({2, 3}), "logit_bias": ((2, 100.0),)},
    {"allowed_tokens": (7,), "repetition_penalty": 2.0, "temperature": 0.0},  # the mask lets 0 to 6 through
]


@pytest.mark.parametrize("wanted", NOTHING_LEFT, ids=str)
def test_a_sequence_without_a_token_left_is_stuck_and_the_others_are_not(wanted: dict[str, Any]) -> None:
    draws = [_draw(10, logprobs=1), _draw(11, logprobs=1, **wanted), _draw(12, logprobs=1, logit_bias=((4, 1.0),))]
    logits = _rows(3, 50)
    output = _sample(logits, draws, masks={11: b"\x7f" + b"\0" * 9} if 7 in wanted["allowed_tokens"] else {})
    assert output.stuck == {11: "rules"}
    assert [sequence for sequence, _ in output.tokens] == list(output.logprobs) == [10, 12]
    alone = _sample(logits[[0, 2]], [draws[0], draws[2]])
    assert (alone.tokens, alone.logprobs) == (output.tokens, output.logprobs)


def test_a_mask_that_lets_nothing_through() -> None:
    draws = [_draw(i, logprobs=2) for i in range(2)]
    assert _sample(_rows(2, 50), draws, masks={0: b"", 1: b"\0" * 7}) == StepOutput(stuck={0: "rules", 1: "rules"})


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "wanted",
    [{}, {"temperature": 0.0}, {"top_p": 0.5, "min_p": 0.1}, {"top_k": 7}, {"repetition_penalty": 1.1}],
    ids=str,
)
def test_scores_that_are_no_numbers_end_their_own_sequence_only(wanted: dict[str, Any], value: float) -> None:
    logits = _rows(3, 600)
    draws = [_draw(i, logprobs=1, **wanted) for i in range(3)]
    expected = _sample(logits, draws)
    logits[1, 300] = value
    output = _sample(logits, draws)
    assert output.stuck == {1: "logits"}
    assert output.tokens == (expected.tokens[0], expected.tokens[2])
    assert output.logprobs == {0: expected.logprobs[0], 2: expected.logprobs[2]}


def test_log_probabilities_are_of_the_raw_logits() -> None:
    logits = _rows(2, 300)
    wanted: dict[str, Any] = {"temperature": 0.2, "top_k": 3, "logit_bias": ((5, 1000.0),), "repetition_penalty": 3.0}
    output = _sample(logits, [_draw(0, logprobs=2, **wanted), _draw(1, logprobs=0)], masks={0: b"\xff"})
    assert output.tokens[0] == (0, 5)
    for sequence, token in output.tokens:
        own, rank, likeliest = reference.token_logprob(logits[sequence], token, 2 - 2 * sequence)
        told = output.logprobs[sequence]
        assert told.own == pytest.approx(own, abs=1e-5)
        assert (told.rank, [token for token, _ in told.top]) == (rank, likeliest)


def test_log_probabilities_for_those_who_asked() -> None:
    draws = [_draw(i, logprobs=[None, 0, 3][i % 3]) for i in range(6)]
    told = _sample(_rows(6, 300), draws).logprobs
    assert {sequence: len(one.top) for sequence, one in told.items()} == {1: 0, 2: 3, 4: 0, 5: 3}


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which operations ran, and over how many rows."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows: dict[str, list[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], torch.Tensor) and args[0].dim() == 2:
            self.rows.setdefault(str(func).removeprefix("aten.").split(".")[0], []).append(len(args[0]))
        return func(*args, **kwargs or {})


def _calls(logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int]) -> dict[str, list[int]]:
    calls = Calls()
    with calls:
        _sample(logits, draws, rows)
    return calls.rows


def test_nothing_is_computed_that_nobody_asked_for() -> None:
    logits = _rows(4, 600)
    calls = _calls(logits, [_draw(i) for i in range(4)], range(4))
    assert calls["_softmax"] == [4]
    assert not calls.keys() & {"_log_softmax", "topk", "sort", "gt", "ge", "index_select", "gather", "div_"}


def test_only_rows_that_ask_for_log_probabilities_are_looked_at() -> None:
    logits = _rows(8, 600)
    draws = [_draw(i, logprobs=2 if i in {3, 5} else None) for i in range(8)]
    assert _calls(logits, draws, range(8))["_log_softmax"] == [2]


def test_siblings_of_one_row_share_one_computation() -> None:
    logits = _rows(2, 600)
    calls = _calls(logits, [_draw(i, logprobs=4) for i in range(16)], [1] * 16)
    assert (calls["_softmax"], calls["_log_softmax"]) == ([1], [1])
    draws = [_draw(i, logprobs=4) for i in range(16)]
    assert _sample(logits, draws, [1] * 16) == _sample(logits[[1] * 16], draws)


def test_only_rows_that_are_edited_are_copied() -> None:
    logits = _rows(8, 600)
    draws = [_draw(i, logit_bias=((4, 1.0),)) if i in {2, 6} else _draw(i) for i in range(8)]
    calls = _calls(logits, draws, range(8))
    assert sorted(calls["_softmax"]) == [2, 6]


# ---- any mixture, any order


@given(mixtures(), st.sampled_from([torch.float32, torch.bfloat16]), st.integers(0, 20))
@settings(max_examples=150, deadline=None)
def test_alone_together_and_in_any_order_the_same(batch: Mixture, dtype: torch.dtype, seed: int) -> None:
    rows, draws, masks, order = batch
    logits = (torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)

    def outcome(
        places: Sequence[int], rows_: Sequence[int], scores: torch.Tensor
    ) -> dict[int, tuple[int | None, Logprobs | None]]:
        output = _sample(scores, [draws[i] for i in places], rows_, masks)
        tokens = dict(output.tokens)
        assert {*tokens, *output.stuck} == {*places}
        return {i: (tokens.get(i), output.logprobs.get(i)) for i in places}

    together = outcome(range(len(rows)), rows, logits)
    assert outcome(order, [rows[i] for i in order], logits) == together
    for i, row in enumerate(rows):
        assert outcome([i], [0], logits[row : row + 1]) == {i: together[i]}

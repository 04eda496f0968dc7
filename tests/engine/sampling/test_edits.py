"""Edits of logits: each against a float64 reference and transformers' own, together, shared, and at the edges."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from transformers.generation import logits_process as theirs

from engine.batch import Draw, Past
from engine.kernels import reference
from engine.messages import Sampling
from engine.sampling.edits import Edits
from engine.sampling.rules import edited
from engine.sampling.tally import Kept, Tally

PLAIN = Draw(sequence=0, seed=1, position=1, sampling=Sampling())
BIAS = ((3, 2.5), (8, -100.0), (3, -1.0), (0, 0.25))
WORDS = ((7,), (1, 2), (5, 6, 9), (6, 10), (4, 5, 6, 11), (5, 6, 5, 6, 12), (2, 6, 13))


def _rows(count: int, vocabulary: int) -> torch.Tensor:
    return torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(2)) * 3


def _draw(prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), /, sequence: int = 0, **settings: Any) -> Draw:
    banned = settings.pop("banned", frozenset())
    return replace(
        PLAIN, sequence=sequence, sampling=Sampling(**settings), past=Past(prompt, list(output)), banned=banned
    )


def _apply(row: torch.Tensor, draw: Draw, mask: bytes | None = None) -> torch.Tensor:
    found = Edits().apply(row[None], [0], [draw], {} if mask is None else {draw.sequence: mask})
    return found.scores[found.rows[0]]


def _expected(row: torch.Tensor, draw: Draw, mask: bytes | None) -> torch.Tensor:
    """The plain reference's, in float64, in the order that engine/sampling/rules.py promises."""
    sampling, past = draw.sampling, draw.past or Past((), ())
    row = row.double()
    if mask is not None:
        row = reference.let_through(row, mask)
    if sampling.allowed_tokens is not None:
        row = reference.exclude(row, set(range(len(row))).difference(sampling.allowed_tokens))
    row = reference.exclude(row, reference.bad_ends((*past.prompt, *past.output), sampling.bad_words))
    row = reference.exclude(row, draw.banned)
    row = reference.add_bias(row, sampling.logit_bias)
    penalties = sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
    return reference.penalize(row, past.prompt, past.output, *penalties)


EDITS: dict[str, dict[str, Any]] = {
    "presence": {"presence_penalty": 0.7},
    "presence, negative": {"presence_penalty": -1.5},
    "frequency": {"frequency_penalty": 0.3},
    "repetition": {"repetition_penalty": 1.3},
    "repetition, below 1": {"repetition_penalty": 0.8},
    "bias": {"logit_bias": BIAS},
    "bad words": {"bad_words": WORDS},
    "allowed": {"allowed_tokens": (0, 2, 5, 9, 11)},
    "banned": {"banned": frozenset({2, 4, 6}), "min_tokens": 3},
    "all": {
        "presence_penalty": 0.7,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.3,
        "logit_bias": BIAS,
        "bad_words": WORDS,
        "allowed_tokens": (*range(12), *range(20, 90)),
        "banned": frozenset({2, 4, 70}),
    },
}


def _pasts(vocabulary: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Prompts and outputs with repeated tokens, the ends of WORDS among them."""
    rng = random.Random(3)
    long = tuple(rng.choices(range(vocabulary), k=300)), tuple(rng.choices(range(vocabulary), k=200))
    return [((1,), ()), ((4, 5, 6), ()), ((3, 4), (5, 6)), ((5, 5, 6), (5, 6)), ((9, 8, 8), (1, 1, 1)), long]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("settings", EDITS.values(), ids=EDITS)
def test_rows_together_equal_the_reference(settings: dict[str, Any], masked: bool) -> None:
    logits, pasts = _rows(6, 90), _pasts(90)
    draws = [_draw(*past, sequence=i, **settings) for i, past in enumerate(pasts)]
    masks = {i: random.Random(i).randbytes(12) for i in range(6)} if masked else {}
    found = Edits().apply(logits, range(6), draws, masks)
    assert (len(found.scores), found.rows) == (6, [0, 1, 2, 3, 4, 5])
    for i, draw in enumerate(draws):
        # float32 against float64: an ulp or two of numbers up to 60.
        torch.testing.assert_close(
            found.scores[i].double(), _expected(logits[i], draw, masks.get(i)), rtol=1e-6, atol=1e-5
        )


PEERS: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "repetition": (EDITS["repetition"], lambda: theirs.RepetitionPenaltyLogitsProcessor(1.3)),
    "bad words": (EDITS["bad words"], lambda: theirs.NoBadWordsLogitsProcessor([list(word) for word in WORDS])),
    "bias": (
        {"logit_bias": ((3, 2.5), (8, -100.0), (0, 0.25))},
        lambda: theirs.SequenceBiasLogitsProcessor([[[3], 2.5], [[8], -100.0], [[0], 0.25]]),
    ),
    "banned": ({"banned": frozenset({2, 4})}, lambda: theirs.SuppressTokensLogitsProcessor([2, 4], device="cpu")),
    "allowed": (
        {"allowed_tokens": (0, 5, 9)},
        lambda: theirs.PrefixConstrainedLogitsProcessor(lambda *_: [0, 5, 9], num_beams=1),
    ),
}


@pytest.mark.parametrize("name", PEERS)
def test_equals_transformers(name: str) -> None:
    settings, make = PEERS[name]
    logits = _rows(6, 90)
    for row, (prompt, output) in zip(logits, _pasts(90), strict=True):
        expected = make()(torch.tensor([[*prompt, *output]]), row[None].clone())[0]
        assert torch.equal(_apply(row, _draw(prompt, output, **settings)), expected)


def test_stop_tokens_before_min_tokens_as_transformers_has_it() -> None:
    logits = _rows(1, 90)
    peer = theirs.MinNewTokensLengthLogitsProcessor(3, 4, eos_token_id=[2, 6])
    for drawn in range(6):
        banned = frozenset({2, 6}) if drawn < 4 else frozenset[int]()
        ours = _apply(logits[0], _draw((1, 1, 1), (5,) * drawn, banned=banned))
        assert torch.equal(ours, peer(torch.tensor([[1, 1, 1] + [5] * drawn]), logits.clone())[0])


def test_bias_comes_before_repetition() -> None:
    # -1 + 3 is above 0 and halved; the other way round it would be -2 + 3.
    row = torch.tensor([-1.0, 0.5])
    assert _apply(row, _draw((0,), (), logit_bias=((0, 3.0),), repetition_penalty=2.0)).tolist() == [1.0, 0.5]


def test_repetition_comes_before_the_other_penalties() -> None:
    row = torch.tensor([4.0, 0.5])
    draw = _draw((), (0, 0), repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    assert _apply(row, draw).tolist() == [4.0 / 2 - 2 * 0.5 - 0.25, 0.5]


def test_presence_and_frequency_look_at_the_output_only() -> None:
    row = _rows(1, 20)[0]
    assert torch.equal(_apply(row, _draw((1, 2, 3), (), frequency_penalty=1.0, presence_penalty=1.0)), row)


def test_a_mask_shorter_than_the_vocabulary_excludes_the_rest() -> None:
    # A model's vocabulary is padded beyond its tokenizer's: what no mask speaks of is not let through.
    row = _rows(1, 100)[0]
    scores = _apply(row, PLAIN, b"\xff\x05")
    assert scores.isfinite().nonzero().flatten().tolist() == [*range(8), 8, 10]
    assert torch.equal(scores[:9], row[:9])


def test_a_mask_longer_than_the_vocabulary_is_cut() -> None:
    row = _rows(1, 13)[0]
    assert _apply(row, PLAIN, b"\x00\xf0\xff\xff").isfinite().nonzero().flatten().tolist() == [12]


def test_masks_for_some_rows_only() -> None:
    logits = _rows(3, 20)
    draws = [_draw(sequence=i, logit_bias=((1, 1.0),)) for i in range(3)]
    found = Edits().apply(logits, range(3), draws, {1: b"\x0f"})
    assert found.scores.isfinite().sum(-1).tolist() == [20, 4, 20]


@pytest.mark.parametrize(
    "settings",
    [{"logit_bias": ((100, 50.0),)}, {"banned": frozenset({100, 150})}, {"bad_words": ((100,),)}],
    ids=str,
)
def test_tokens_that_the_model_does_not_have_change_nothing(settings: dict[str, Any]) -> None:
    # Token 100 of the first of two rows would be token 0 of the second.
    logits = _rows(2, 100)
    found = Edits().apply(logits, [0, 1], [_draw(sequence=i, **settings) for i in range(2)], {})
    assert torch.equal(found.scores, logits)


def test_bad_words_are_gone_through_once_and_not_in_every_step() -> None:
    seen = 0

    class Words(tuple[tuple[int, ...], ...]):
        def __iter__(self) -> Iterator[tuple[int, ...]]:
            nonlocal seen
            for word in super().__iter__():
                seen += 1
                yield word

    words: list[tuple[int, ...]] = [(i % 7, i % 11, i % 50) for i in range(700)]
    words += [*((i % 5, i % 50) for i in range(300)), (49,), (48,)]
    sampling, edits, logits = Sampling(bad_words=Words(words)), Edits(), _rows(8, 50)
    for last in range(7):
        edits.step()
        draws = [replace(_draw((3, 1), (i % 7, last), sequence=i), sampling=sampling) for i in range(8)]
        found = edits.apply(logits, range(8), draws, {})
        for i, row in enumerate(found.rows):
            torch.testing.assert_close(found.scores[row].double(), _excluding(logits[i], (3, 1, i % 7, last), words))
    assert seen == len(words)


def _excluding(row: torch.Tensor, past: tuple[int, ...], words: list[tuple[int, ...]]) -> torch.Tensor:
    return reference.exclude(row.double(), reference.bad_ends(past, words))


def test_choices_that_want_the_same_share_a_row() -> None:
    # What leaves prefill together draws from one row of logits; only what is wanted of it tells the rows apart.
    logits = _rows(2, 50)
    one, other = Sampling(presence_penalty=1.0, logit_bias=((3, 1.0),)), Sampling(repetition_penalty=2.0)
    prompt = (3, 4, 5)

    def draw(sequence: int, sampling: Sampling, banned: frozenset[int] = frozenset()) -> Draw:
        return replace(PLAIN, sequence=sequence, sampling=sampling, past=Past(prompt, []), banned=banned)

    draws = [draw(0, one), draw(1, other), draw(2, one), draw(3, other, frozenset({7})), draw(4, one), draw(5, one)]
    found = Edits().apply(logits, [1, 1, 1, 1, 1, 0], draws, {4: b"\xff" * 7})
    assert found.rows == [0, 1, 0, 2, 3, 4]
    for i, draw_ in enumerate(draws):
        row, mask = logits[0 if i == 5 else 1], b"\xff" * 7 if i == 4 else None
        torch.testing.assert_close(found.scores[found.rows[i]].double(), _expected(row, draw_, mask))


def test_logits_are_not_changed() -> None:
    logits = _rows(2, 90)
    before = logits.clone()
    Edits().apply(logits, [0, 1], [_draw(*_pasts(90)[-1], sequence=i, **EDITS["all"]) for i in range(2)], {})
    assert torch.equal(logits, before)


def test_bfloat16_is_edited_in_float32() -> None:
    row = _rows(1, 90)[0].bfloat16()
    scores = _apply(row, _draw((5,), (5, 6), **EDITS["all"]))
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), _expected(row, _draw((5,), (5, 6), **EDITS["all"]), None))


@pytest.mark.parametrize("settings", EDITS.values(), ids=EDITS)
def test_a_growing_output_is_as_one_seen_for_the_first_time(settings: dict[str, Any]) -> None:
    rng = random.Random(8)
    edits = Edits()
    outputs: list[list[int]] = [[], []]
    for step in range(150):
        edits.step()
        logits = _rows(2, 90)
        draws = []
        for i, output in enumerate(outputs):
            draw = _draw((4, 5, 6), (), sequence=i, **settings)
            draws.append(replace(draw, past=Past((4, 5, 6), output)))
        # The second misses a step now and then, as a preempted sequence does.
        here = draws if step % 7 else draws[:1]
        together = edits.apply(logits, range(len(here)), here, {})
        for i, draw in enumerate(here):
            assert torch.equal(together.scores[i], _apply(logits[i], draw))
        for output in outputs[: len(here)]:
            output.append(rng.randrange(90))


def test_a_draw_without_its_past_is_refused() -> None:
    draw = replace(PLAIN, sequence=7, sampling=Sampling(frequency_penalty=1.0))
    with pytest.raises(ValueError, match="the draw of sequence 7 needs the tokens before it"):
        Edits().apply(_rows(1, 10), [0], [draw], {})


# What is looked at behind the edits, and what reaches a draw as `banned`.
NO_EDITS: dict[str, Any] = {"temperature": 0.3, "top_k": 4, "top_p": 0.5, "min_p": 0.2, "min_tokens": 9}


@pytest.mark.parametrize("name", sorted({one.name for one in fields(Sampling)}.difference(NO_EDITS)))
def test_every_other_field_is_an_edit(name: str) -> None:
    value = EDITS["all"][name]
    assert edited(_draw(**{name: value}), {})
    assert Sampling(**{name: value}).edits


def test_what_counts_as_an_edit() -> None:
    assert not edited(_draw(**NO_EDITS), {1: b""})
    assert edited(_draw(), {0: b""})
    assert edited(_draw(banned=frozenset({2})), {})


def test_a_tally_counts_what_is_new() -> None:
    tally = Tally((5, 6, 5))
    output = [6, 9, 9, *range(100, 300), 9]
    for end in (0, 1, 3, 3, len(output)):
        tally.take(output[:end])
    counts = dict(zip(tally.tokens.tolist(), tally.counts.tolist(), strict=True))
    assert counts == {5: 0, 6: 1, 9: 3} | dict.fromkeys(range(100, 300), 1)


def test_what_two_steps_do_not_ask_for_is_forgotten() -> None:
    kept: Kept[str] = Kept()
    one, other = [1], [2]
    made: list[str] = []

    def make(name: str) -> Callable[[], str]:
        return lambda: made.append(name) or name  # type: ignore[func-returns-value]

    for number in range(5):
        kept.step()
        assert kept.of((one,), make("one")) == "one"
        assert number % 2 or kept.of((other, one), make("both")) == "both"
    for left in (2, 2, 1):
        kept.step()
        assert len(kept) == left
        kept.of((one,), make("one"))
    assert made == ["one", "both"]
    kept.of((other, one), make("both"))
    assert made == ["one", "both", "both"]

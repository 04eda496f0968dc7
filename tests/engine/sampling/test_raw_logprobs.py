"""Log probabilities, ranks and the likeliest tokens of raw logits; and the highest of a row, equals included."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from engine.kernels import reference
from engine.sampling import logprobs as room
from engine.sampling.highest import highest
from engine.sampling.logprobs import logprobs


def _rows(count: int, vocabulary: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(seed)) * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [0, 1, 5, 20, 400])
@pytest.mark.parametrize("vocabulary", [17, 400, 3001])
def test_equals_the_reference(vocabulary: int, count: int, dtype: torch.dtype) -> None:
    logits = _rows(3, vocabulary).to(dtype)
    wanted = [
        (row, token, count) for row in (2, 0, 1, 2) for token in (0, 5, vocabulary - 1, int(logits[row].argmax()))
    ]
    for (row, token, _), told in zip(wanted, logprobs(logits, wanted), strict=True):
        scores = logits[row].float()
        own, rank, likeliest = reference.token_logprob(scores, token, count)
        exact = scores.double().log_softmax(0)
        assert told.own == pytest.approx(own, abs=1e-5)
        assert told.rank == rank
        assert [token for token, _ in told.top] == likeliest
        assert [value for _, value in told.top] == pytest.approx(exact[likeliest].tolist(), abs=1e-5)


def test_equals_torch_bit_for_bit_alone_or_not() -> None:
    logits = _rows(33, 49_152)
    wanted = [(row, 1000 + row, 5) for row in range(33)]
    together = logprobs(logits, wanted)
    assert together == [logprobs(logits[row : row + 1], [(0, token, 5)])[0] for row, token, _ in wanted]
    exact = logits.log_softmax(-1)
    assert [told.own for told in together] == [float(exact[row, token]) for row, token, _ in wanted]


def test_a_different_count_beside_it_changes_nothing() -> None:
    logits = _rows(2, 500).bfloat16()  # full of equals
    few, many = logprobs(logits, [(0, 3, 4), (1, 3, 20)])
    assert few == logprobs(logits, [(0, 3, 4)])[0]
    assert many == logprobs(logits, [(1, 3, 20)])[0]


def test_equals_share_a_rank_and_come_lowest_id_first() -> None:
    logits = torch.zeros(1, 600)
    logits[0, [40, 300, 301]] = 2.0
    first, last, rest = logprobs(logits, [(0, 40, 5), (0, 301, 2), (0, 7, 0)])
    assert [token for token, _ in first.top] == [40, 300, 301, 0, 1]
    assert [token for token, _ in last.top] == [40, 300]
    assert (first.rank, last.rank, rest.rank) == (1, 1, 4)


def test_more_than_there_are() -> None:
    (told,) = logprobs(_rows(1, 7), [(0, 2, 20)])
    assert len(told.top) == 7
    assert sum(math.exp(value) for _, value in told.top) == pytest.approx(1)


def test_a_token_that_cannot_be() -> None:
    logits = _rows(1, 50)
    logits[0, 3] = -torch.inf
    (told,) = logprobs(logits, [(0, 3, 1)])
    assert (told.own, told.rank) == (-math.inf, 50)


def test_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = _rows(9, 300)
    wanted = [(row, row, 3) for row in (4, 4, 0, 8, 2, 4, 4, 7, 1)]
    whole = logprobs(logits, wanted)
    monkeypatch.setattr(room, "_SLICE", 700)
    assert room.positions(300) == 2
    assert logprobs(logits, wanted) == whole
    assert room.positions(10_000) == 1


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "any": torch.clone,
    "few": torch.round,
    "equal": torch.ones_like,
    "signed zeros": lambda rows: rows.sign() * 0.0,
    "negative": lambda rows: -rows.abs(),
    "infinite": lambda rows: rows.masked_fill(rows < 1, -torch.inf),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 2, 63, 64, 1000, 4097])
def test_the_highest_of_rows(width: int, kind: str) -> None:
    rows = KINDS[kind](_rows(3, width))
    expected = (rows + 0.0).sort(dim=-1, descending=True, stable=True).indices
    for count in (1, 2, 5, 33, width // 2, width):
        if 0 < count <= width:
            assert torch.equal(highest(rows, count), expected[:, :count])

"""What goes to the device: edits that come out there to the bit as on the CPU, and the draws' table."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.batch import Draw, Past
from engine.device.draws import Packer
from engine.kernels import launch
from engine.kernels.draw_table import DRAW
from engine.kernels.logits_edit import logits_edit
from engine.messages import Sampling
from engine.sampling.edits import Edits

_VOCABULARY = 90
_PLAIN = Draw(sequence=0, seed=1, position=1, sampling=Sampling())
_LONG = tuple(random.Random(3).choices(range(_VOCABULARY), k=300))
_PASTS = [((1,), ()), ((3, 4), (5, 6)), ((5, 5, 6), (5, 6)), ((), ()), (_LONG, _LONG[:200])]


def _draws(**settings: Any) -> list[Draw]:
    banned, sampling = settings.pop("banned", frozenset()), Sampling(**settings)
    return [
        replace(_PLAIN, sequence=i, sampling=sampling, past=Past(prompt, list(output)), banned=banned)
        for i, (prompt, output) in enumerate(_PASTS)
    ]


EDITS: dict[str, dict[str, Any]] = {
    "presence": {"presence_penalty": 0.7},
    "frequency": {"frequency_penalty": -0.3},
    "repetition": {"repetition_penalty": 1.3},
    "bias": {"logit_bias": ((3, 2.5), (8, -100.0), (3, -1.0), (0, 0.25), (500, 9.0))},
    "bad words": {"bad_words": ((7,), (1, 2), (5, 6, 9), (6, 10), (500,))},
    "allowed": {"allowed_tokens": (0, 2, 5, 9, 11, 500)},
    "nothing allowed": {"allowed_tokens": ()},
    "banned": {"banned": frozenset({2, 4, 6, 500})},
    "all": {
        "presence_penalty": 0.7,
        "frequency_penalty": 0.3,
        "repetition_penalty": 0.8,
        "logit_bias": ((3, 2.5), (4, 50.0), (0, 0.25)),
        "bad_words": ((7,), (5, 6, 9)),
        "allowed_tokens": (*range(12), *range(20, 90)),
        "banned": frozenset({2, 4, 70}),
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("settings", EDITS.values(), ids=EDITS)
def test_edits_are_those_of_the_cpu_bit_for_bit(
    settings: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "COPY_TOKENS", 64)  # several programs, the last one with too many lanes
    monkeypatch.setattr(launch, "PAIRS", 16)
    logits = (torch.randn(5, _VOCABULARY, generator=torch.Generator().manual_seed(2)) * 3).to(dtype)
    before, draws, rows = logits.clone(), _draws(**settings), [4, 1, 1, 0, 3]
    masks = {1: random.Random(1).randbytes(12), 4: b"\xfe\x81"}
    plan = Packer(_VOCABULARY).plan(rows, draws, masks)
    edited = logits_edit(logits, {name: torch.from_numpy(array) for name, array in plan.arrays.items()})
    expected = Edits().apply(logits, rows, draws, masks)
    assert torch.equal(edited, expected.scores)
    assert [~int(row) for row in plan.arrays["draws"][:, 0]] == expected.rows
    assert torch.equal(logits, before)


def test_edits_of_some_rows_take_in_no_others() -> None:
    draws = [replace(_PLAIN, sequence=i, banned=frozenset({3}) if i == 1 else frozenset()) for i in range(3)]
    arrays = Packer(_VOCABULARY).plan([5, 6, 7], draws, {2: b"\xff"}).arrays
    assert arrays["changes"][:, :2].tolist() == [[6, -1], [7, 0]]
    assert arrays["draws"][:, 0].tolist() == [5, ~0, ~1]
    assert arrays["excluded"].tolist() == [3]
    assert arrays.keys() == {"draws", "changes", "masks", "excluded"}


def test_a_step_of_plain_draws_is_one_table() -> None:
    one, other = Sampling(temperature=0.7), Sampling(temperature=0.7, top_p=0.5)
    wanted = [one, one, other, Sampling(temperature=0.0, top_p=0.2), Sampling(top_k=1, temperature=3.0)]
    draws = [Draw(i, -i, 2**40 + i, sampling) for i, sampling in enumerate([*wanted, replace(one)])]
    plan = Packer(_VOCABULARY).plan([2, 2, 2, 2, 2, 0], draws, {})
    assert plan.arrays.keys() == {"draws"}
    lines = np.ascontiguousarray(plan.arrays["draws"]).view(DRAW)[:, 0]
    assert lines["row"].tolist() == [2, 2, 2, 2, 2, 0]
    assert lines["same"].tolist() == [0, 0, 2, 3, 3, 5]
    assert lines["temperature"].tolist() == [0.7, 0.7, 0.7, 0.0, 0.0, 0.7]
    assert lines["top_p"].tolist() == [1.0, 1.0, 0.5, 1.0, 1.0, 1.0]
    assert lines["seed"].tolist() == [0, -1, -2, -3, -4, -5]
    assert lines["position"].tolist() == [2**40 + i for i in range(6)]


@pytest.mark.parametrize(
    ("settings", "cuts"),
    [
        ({}, False),
        ({"top_k": 1, "top_p": 0.5}, False),
        ({"temperature": 0.0, "min_p": 0.5}, False),
        ({"top_k": 2}, True),
        ({"min_p": 0.1}, True),
        ({"top_p": 0.9}, True),
    ],
    ids=str,
)
def test_whether_a_step_cuts(settings: dict[str, Any], cuts: bool) -> None:
    assert Packer(_VOCABULARY).plan([0], [replace(_PLAIN, sampling=Sampling(**settings))], {}).cuts == cuts


def test_a_draw_without_its_past_is_refused() -> None:
    draw = replace(_PLAIN, sequence=7, sampling=Sampling(frequency_penalty=1.0))
    with pytest.raises(ValueError, match="the draw of sequence 7 needs the tokens before it"):
        Packer(_VOCABULARY).plan([0], [draw], {})

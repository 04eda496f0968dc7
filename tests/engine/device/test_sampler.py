"""The device's sampler gives what the CPU's gives, and never looks at the device while a step is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from engine.batch import Draw, Past, StepOutput
from engine.device import sampler as sampler_module
from engine.device.sampler import DeviceSampler, Drawn
from engine.messages import Logprobs, Sampling
from engine.sampling.sampler import Sampler
from tests.engine.sampling.mixtures import ROWS, VOCABULARY, Mixture, mixtures

_CPU = torch.device("cpu")


def _close(told: Logprobs, expected: Logprobs) -> bool:
    return (
        told.rank == expected.rank
        and told.own == pytest.approx(expected.own, abs=1e-4)
        and [token for token, _ in told.top] == [token for token, _ in expected.top]
        and [log for _, log in told.top] == pytest.approx([log for _, log in expected.top], abs=1e-4)
    )


def _compare(drawn: Drawn, expected: StepOutput) -> None:
    output = drawn.collect()
    assert (output.tokens, output.stuck) == (expected.tokens, expected.stuck)
    assert list(output.logprobs) == list(expected.logprobs)
    assert all(_close(told, expected.logprobs[sequence]) for sequence, told in output.logprobs.items())
    given_ = dict(expected.tokens)
    assert drawn.tokens.tolist() == [given_.get(sequence, 0) for sequence in sorted({*given_, *expected.stuck})]


def _rows(count: int, vocabulary: int, seed: int = 6) -> torch.Tensor:
    return torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


@given(mixtures(), st.sampled_from([torch.float32, torch.float16]), st.integers(0, 20))
@settings(max_examples=12, phases=[Phase.generate])  # to make a failure smaller would take the interpreter minutes
def test_any_mixture_as_on_the_cpu(mixture: Mixture, dtype: torch.dtype, seed: int) -> None:
    rows, draws, masks, _ = mixture
    logits = _rows(ROWS, VOCABULARY, seed).to(dtype)
    before = logits.clone()
    drawn = DeviceSampler(_CPU, VOCABULARY).sample(logits, rows, draws, masks)
    _compare(drawn, Sampler().sample(logits, rows, draws, masks))
    assert torch.equal(logits, before)


# One of each: what a step can hold, over a vocabulary of several blocks.
_KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"top_k": 40, "top_p": 0.8, "temperature": 1.3},
    {"min_p": 0.05, "logit_bias": ((3, 4.0), (650, 5.0))},
    {"presence_penalty": 0.5, "repetition_penalty": 1.2, "temperature": 0.4},
    {"allowed_tokens": (3, 699)},
    {"allowed_tokens": ()},
]


def _all_kinds() -> tuple[list[int], list[Draw], dict[int, bytes]]:
    draws = [
        Draw(i, 7919 * i, 2**33 + i, Sampling(**kind), Past((1, 2), [3, 4, 3]), logprobs=[None, 0, 3, 20][i % 4])
        for i, kind in enumerate([*_KINDS, *_KINDS[:3]])
    ]
    return [0, 1, 2, 3, 1, 2, 3, 4, 0, 2], draws, {1: b"\xff" * 3, 7: b"\xff" * 88}


def test_all_kinds_over_several_blocks() -> None:
    rows, draws, masks = _all_kinds()
    logits = _rows(5, 700)
    logits[4, 600] = torch.nan
    sampler, on_cpu = DeviceSampler(_CPU, 700), Sampler()
    _compare(sampler.sample(logits, rows, draws, masks), on_cpu.sample(logits, rows, draws, masks))
    for draw in draws:
        draw.past.output.append(9)  # type: ignore[union-attr]
    _compare(sampler.sample(logits, rows, draws, {}), on_cpu.sample(logits, rows, draws, {}))


class _Unseen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Forbids what would wait for a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.").split(".")[0]
        assert name not in {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "item", "masked_select", "unique"}
        assert not (name == "index" and any(one is not None and one.dtype == torch.bool for one in args[1]))
        return func(*args, **kwargs or {})


def test_a_step_is_made_without_a_look_at_the_device() -> None:
    rows, draws, masks = _all_kinds()
    logits = _rows(5, 700)
    with _Unseen():  # type: ignore[no-untyped-call]
        drawn = DeviceSampler(_CPU, 700).sample(logits, rows, draws, masks)
    _compare(drawn, Sampler().sample(logits, rows, draws, masks))


def test_arrays_may_be_longer_than_the_step_needs() -> None:
    # As in a recorded step's memory, where lines of an earlier and larger step still stand.
    rows, draws, masks = _all_kinds()
    logits, sampler = _rows(5, 700), DeviceSampler(_CPU, 700)
    plan = sampler.plan(rows, draws, masks)
    longer = {name: _longer(torch.from_numpy(array)) for name, array in plan.arrays.items()}
    _compare(
        sampler.launch(logits, plan, longer, torch.zeros(99, dtype=torch.int64)),
        Sampler().sample(logits, rows, draws, masks),
    )


def _longer(array: torch.Tensor) -> torch.Tensor:
    return torch.cat((array, array.flip(0)))


_LISTS = {"masks", "excluded", "biased", "bias", "tallied", "times"}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What is launched, and in which form: the optional inputs that it has."""
    seen: list[tuple[str, ...]] = []

    def note(name: str, real: Callable[..., Any], *args: Any) -> Any:
        named = inspect.signature(real).bind(*args).arguments
        optional = [key for key in ("edited", "lowest") if named.get(key) is not None]
        seen.append((name, *optional, *(key for key in named.get("arrays", ()) if key in _LISTS)))
        return real(*args)

    for name in ("block_sums", "topk_topp", "sample_row", "logits_edit", "logprob_rank"):
        monkeypatch.setattr(sampler_module, name, partial(note, name, getattr(sampler_module, name)))
    return seen


@pytest.mark.parametrize(
    ("wanted", "masks", "expected"),
    [
        ({}, {}, ["block_sums", "sample_row"]),
        ({"temperature": 0.0}, {}, ["block_sums", "sample_row"]),
        ({"top_k": 3}, {}, ["block_sums", "topk_topp", "block_sums", "sample_row"]),
        ({}, {1: b"\xff"}, ["logits_edit", "block_sums", "sample_row"]),
    ],
    ids=str,
)
def test_nothing_is_launched_that_nobody_asked_for(
    wanted: dict[str, Any], masks: dict[int, bytes], expected: list[str], launches: list[tuple[str, ...]]
) -> None:
    draws = [Draw(0, 0, 1, Sampling()), Draw(1, 1, 1, Sampling(**wanted))]
    DeviceSampler(_CPU, 300).sample(_rows(2, 300), [0, 1], draws, masks)
    assert [name for name, *_ in launches] == expected


def test_warming_up_launches_everything_in_every_form(launches: list[tuple[str, ...]]) -> None:
    DeviceSampler(_CPU, 300).warm_up(torch.float32)
    forms = {("logprob_rank",), ("topk_topp",), ("topk_topp", "edited"), ("logits_edit", "masks")}
    forms |= {
        (name, *more)
        for name in ("block_sums", "sample_row")
        for more in ((), ("edited",), ("lowest",), ("edited", "lowest"))
    }
    # No masks, and every list that a step can have.
    forms.add(("logits_edit", "excluded", "biased", "bias", "tallied", "times"))
    assert set(launches) == forms

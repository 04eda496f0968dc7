"""A step on a GPU, without one: all tensors only claim to be there, and kernels are looked at, not run.

torch's fake tensors have shapes, types and devices and hold no numbers. So whatever mixes devices fails here as it
would there, and so does whatever needs a number on the host before the step is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction

from engine.attention.cache import KvCache
from engine.batch import Batch, Chunk, Draw, Past, Row
from engine.config import EngineConfig
from engine.device import sampler, transfer
from engine.device.frame import Arrays, Frame, Views
from engine.device.graphs import Recording, Step
from engine.device.runner import DevicePending, DeviceRunner
from engine.kernels import launch
from engine.kv_spans import plan_kv_spans
from engine.messages import Sampling
from engine.models.bridge import Bridge
from engine.models.llama import Decoder
from engine.models.lora import Pair
from engine.models.model import Model
from engine.models.spec import ModelSpec
from engine.models.stored import Sizes
from tests.engine.device.running import write

THERE = torch.device("meta")  # as good as a GPU to fake tensors, and torch need not be built for one
BLOCK = 16
SPEC = ModelSpec(
    architecture="llama",
    vocab=1024,
    hidden=64,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=96,
    eps=1e-5,
    rope_theta=10000.0,
    scaling=None,
    context=512,
    tied=False,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=False,
    qk_norm=True,
    eos=frozenset({2}),
    windows=(None, 24, None),
    unrotated=frozenset({2}),
)


class _Weights:
    """A checkpoint whose tensors are all there, and never read."""

    spec = SPEC
    names = frozenset({"lm_head.weight"})

    @property
    def sizes(self) -> Sizes:
        raise AssertionError("nobody counts them")

    def demand(self, name: str, shape: tuple[int, ...]) -> None:
        """They have any shape."""

    def read(self, name: str, out: torch.Tensor) -> None:
        assert out.device == (THERE if name != "rope_freqs.weight" else torch.device("cpu"))

    def stored(self, name: str, shape: tuple[int, int]) -> None:
        raise AssertionError("a GPU's are floats")


@dataclass
class _Recorded:
    output: torch.Tensor
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1


@dataclass
class Gpu:
    """What was asked of the GPU that is not there: kernels with what they were compiled for, and recordings."""

    launched: set[tuple[Any, ...]] = field(default_factory=set)
    recordings: list[_Recorded] = field(default_factory=list)

    def launch(self, kernel: InterpretedFunction[Any], *args: Any, grid: Any, warmup: bool, **settings: Any) -> None:
        """In place of a kernel: all it is given lies on the device; Triton compiles by what is noted here."""
        assert all(one > 0 for one in grid)
        bound = dict(zip(kernel.arg_names, args, strict=False)) | settings
        loose = set(kernel.kwargs.get("do_not_specialize") or ())
        unaligned = set(kernel.kwargs.get("do_not_specialize_on_alignment") or ())
        self.launched.add((kernel.__name__, *(_form(n, v, loose, unaligned) for n, v in sorted(bound.items()))))

    def record(self, step: Step) -> Recording:
        self.recordings.append(_Recorded(step()))
        return self.recordings[-1]


def _form(name: str, value: Any, loose: set[str], unaligned: set[str]) -> tuple[Any, ...]:
    if isinstance(value, torch.Tensor):
        assert value.device == THERE, f"{name} lies on {value.device}"
        aligned = value.storage_offset() * value.element_size() % 16 == 0
        return name, value.dtype, None if name in unaligned else aligned
    if isinstance(value, int) and not name.isupper() and name in loose:
        return name, "whole"
    if isinstance(value, int) and name.islower() and not name.startswith("num_"):
        return name, value == 1, value % 16 == 0, value >= 1 << 31
    return name, value


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """No copy between host and device but those that nobody waits for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default and args[0].device != args[1].device:
            assert args[2:] == (True,), "a copy that the host waits for"
        if func is torch.ops.aten._to_copy.default:
            assert result.device == args[0].device, "a copy that the host waits for"
        return result


def _send(self: transfer.Buffers, frame: Frame, arrays: Arrays) -> Views:
    assert frame.takes(arrays)
    return _there(frame)


def _there(frame: Frame) -> Views:
    return frame.views(torch.empty(frame.size, dtype=torch.uint8, device=THERE))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    seen = Gpu()
    monkeypatch.setattr(InterpretedFunction, "run", lambda kernel, *args, **more: seen.launch(kernel, *args, **more))
    monkeypatch.setattr(launch, "programs", lambda *_: 8)
    monkeypatch.setattr(transfer.Buffers, "send", _send)
    monkeypatch.setattr(sampler, "_upload", lambda arrays, _: _there(Frame.of(arrays)))
    monkeypatch.setattr(transfer, "pinned", lambda shape, dtype, _: torch.empty(shape, dtype=dtype))
    monkeypatch.setattr(transfer, "mark", lambda _: transfer.Nothing())
    monkeypatch.setattr(DevicePending, "result", lambda _: None)
    monkeypatch.setattr(sampler.Drawn, "collect", lambda _: None)
    with FakeTensorMode():
        yield seen


def _config(**settings: Any) -> EngineConfig:
    return EngineConfig("", block_size=BLOCK, max_sequences=8, **settings)


def _decoder() -> Decoder:
    """With an adapter of one product in each layer."""
    model = Decoder(_Weights(), torch.bfloat16, SPEC.context, THERE)
    pair = Pair(*(torch.empty(shape, dtype=torch.bfloat16, device=THERE) for shape in ((96, 4), (4, 64))))
    model.adapt("tuned", {f"model.layers.{layer}.mlp.down_proj": pair for layer in range(SPEC.layers)})
    return model


def _runner(gpu: Gpu, config: EngineConfig, model: Model | None = None) -> DeviceRunner:
    model = model or _decoder()
    cache = KvCache(model.attention, 64, BLOCK, torch.bfloat16, THERE)
    return DeviceRunner(config, model, cache, overlaps=True, record=gpu.record if model.steady else None, adds=True)


_KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 4, "top_p": 0.8},
    {"min_p": 0.1, "logit_bias": ((3, 4.0),)},
    {"allowed_tokens": (3, 699), "bad_words": ((5,),)},
    {"presence_penalty": 0.5, "repetition_penalty": 1.2},
)


def _draw(number: int, kind: int = 0, logprobs: int | None = None) -> Draw:
    return Draw(number, number, 40, Sampling(**_KINDS[kind]), Past((1, 2), [3, 4, 3]), logprobs=logprobs)


def _rows(
    count: int, kinds: int = 1, logprobs: int | None = None, adapter: str | None = None, token: int | None = None
) -> Batch:
    """Rows that share two blocks; without a token they begin with what the step before drew."""
    rows = [Row(i, token, 33, (0, 1, 2 + i), _draw(i, i % kinds, logprobs), adapter) for i in range(count)]
    return Batch(rows=tuple(rows), kv_spans=plan_kv_spans(rows, BLOCK))


def _chunks(*lengths: int, **told: Any) -> tuple[Chunk, ...]:
    return tuple(
        [
            Chunk(20 + i, (7,) * length, 0, tuple(range(20 + 8 * i, 28 + 8 * i)), (_draw(20 + i),), **told)
            for i, length in enumerate(lengths)
        ]
    )


def _scored(length: int, count: int) -> Chunk:
    return replace(_chunks(length)[0], next_tokens=(9,) * (length - 1), prompt_logprobs=count)


STEPS: dict[str, Batch] = {
    "a prompt": Batch(chunks=_chunks(17)),
    "prompts": Batch(chunks=_chunks(17, 1, 48)),
    "a prompt that draws nothing": Batch(chunks=(replace(_chunks(16)[0], draws=()),)),
    "prompts beside rows": replace(_rows(3), chunks=_chunks(9, 32)),
    "an adapter's prompt and rows": replace(_rows(3, adapter="tuned"), chunks=_chunks(9, adapter="tuned")),
    "one row": _rows(1),
    "few rows": _rows(3),
    "rows": _rows(5),
    "as many rows as there may be": _rows(8),
    "copies": replace(_rows(2), copies=((0, 60), (1, 61))),
    "all kinds of draws": _rows(8, kinds=len(_KINDS)),
    "log probabilities": _rows(8, kinds=len(_KINDS), logprobs=5),
    "masks": replace(_rows(3), masks={1: b"\xff" * 128}),
    "a prompt's own log probabilities": Batch(chunks=(_scored(33, 3),)),
    "a prompt's own alone": Batch(chunks=(_scored(33, 0),)),
    "means": Batch(chunks=tuple([replace(one, draws=(), pooling="mean") for one in _chunks(5, 6)])),
    "last": Batch(chunks=tuple([replace(one, draws=(), pooling="last", last=True) for one in _chunks(5, 6)])),
}


KERNELS = {
    *("_attn_items", "_merge_parts", "_prefill_attn", "_qkv_rope_store", "_rms_norm", "_silu_mul", "_copy_blocks"),
    *("_copy", "_exclude", "_add", "_penalize", "_block_sums", "_candidates", "_lowest_kept", "_sample_row"),
    "_logprob_rank",
}


@pytest.mark.parametrize("settings", [{}, {"deterministic": True}], ids=["any shapes", "fixed shapes"])
def test_no_step_mixes_devices_or_waits(gpu: Gpu, settings: dict[str, Any]) -> None:
    runner = _runner(gpu, _config(**settings))
    with _Watch():  # type: ignore[no-untyped-call]
        for batch in STEPS.values():
            runner.submit(_rows(8, token=5))
            runner.submit(batch)
    assert gpu.recordings and all(one.replays for one in gpu.recordings)


@pytest.mark.parametrize("settings", [{}, {"deterministic": True}], ids=["any shapes", "fixed shapes"])
def test_nothing_is_compiled_once_the_runner_is_warm(gpu: Gpu, settings: dict[str, Any]) -> None:
    """Triton compiles by arguments' types, their divisibility by 16, whether they are 1 or missing, and constants."""
    config = _config(**settings)
    runner = _runner(gpu, config)
    runner.warm_up(config)
    known = set(gpu.launched)
    assert {name for name, *_ in known} == KERNELS | ({"_add_product"} if not config.deterministic else set())
    for batch in STEPS.values():
        runner.submit(_rows(8, token=5))
        runner.submit(batch)
    assert gpu.launched == known


def test_all_steps_run_on_the_stream_that_the_runner_was_made_on(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, told = _runner(gpu, _config()), []

    @contextmanager
    def entered(stream: Any) -> Iterator[None]:
        told.append((stream, len(gpu.launched)))
        yield
        told.append((None, len(gpu.launched)))

    runner._stream = "made on"  # type: ignore[assignment]
    monkeypatch.setattr(torch.cuda, "stream", entered)
    gpu.launched.clear()
    runner.submit(STEPS["prompts"])
    assert told == [("made on", 0), (None, len(gpu.launched))]
    assert gpu.launched


def test_models_of_transformers_mix_no_devices_either(gpu: Gpu, tmp_path: Path) -> None:
    """One with experts, windows and sinks; its weights are moved as Bridge moves them."""
    with unset_fake_temporarily():
        folder = write(tmp_path, "gpt_oss", sliding_window=8, num_local_experts=4, num_experts_per_tok=2)
        model = Bridge(folder, torch.bfloat16, None)
    for module in model._model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, one in tensors.items():
                if one is not None:
                    moved = torch.empty(one.shape, dtype=one.dtype, device=THERE)
                    tensors[name] = torch.nn.Parameter(moved) if tensors is module._parameters else moved
    runner = _runner(gpu, _config(), model)
    with _Watch():  # type: ignore[no-untyped-call]
        for name, batch in STEPS.items():
            if "adapter" not in name:
                runner.submit(_rows(8, token=5))
                runner.submit(batch)

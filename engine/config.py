"""The engine's settings: one frozen value, checked when it is made. No torch, no asyncio."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from engine.errors import ConfigError

_GIB = 1 << 30
_BATCH_TOKENS = {"cpu": 1024, "cuda": 8192}
"""By type of device: on a CPU other requests wait while a prompt's part is computed; a GPU needs that many tokens for
full speed.
"""
_CPU_GATE = 64
"""Tokens: the reads saved for so many pay for one more product in each layer."""
_GATE_BYTES = 4 << 20
"""Of one layer, on a GPU: a microsecond's reading, which is what the partial results of one more item per
row cost there.
"""

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["int8"]
Device = Literal["auto", "cpu", "cuda"]
Kernels = Literal["auto", "torch", "native", "triton"]
Pooling = Literal["mean", "last"]


def cpu_pool(longest: int) -> int:
    """Return the most bytes of KV on a CPU: for two sequences of the longest kind, from half a GiB to one GiB.

    longest: the bytes of the longest sequence. What the prefix cache has filled stays resident, so a larger pool is
    memory that an idle engine keeps.
    """
    return min(max(2 * longest, _GIB // 2), _GIB)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What one engine runs and how much of the machine it takes.

    Raises ConfigError for values that cannot work.
    """

    model: str
    """A Hugging Face folder or a .gguf file."""
    dtype: Dtype = "auto"
    """Of weights and KV; "auto" leaves it to the runner and the device."""
    quantization: Quantization | None = None
    """On a CPU, "int8" keeps the weights in int8 and multiplies in it. None keeps them in dtype, or, with native
    kernels, in the few bits in which a file stores them.
    """
    device: Device = "auto"
    """Where the model runs; "auto" takes a CUDA device if there is one that can be used and Triton is installed."""
    kernels: Kernels = "auto"
    """What computes attention and everything else between the matrix products. "auto" is Triton on a CUDA device. On a
    CPU it is "native", which the C compiler builds, or torch if there is no compiler, for float16, for models that the
    native kernels do not support, and in deterministic mode for models of which they do not compute every product.
    Triton's kernels run on a CPU only under its interpreter.
    """
    cuda_graphs: bool = True
    """On a CUDA device, replay recorded launches in decoding steps."""
    deterministic: bool = False
    """An answer is the same bit for bit whatever else runs. Costs up to a seventh of a step with kernels in C; without
    them, steps take 2 to 12 times as long."""
    served_model_name: str | None = None
    """The model's id in the API; None takes the model's own name."""
    block_size: int = 16
    """Tokens per KV block."""
    num_blocks: int | None = None
    """The size of the pool; None derives it from memory."""
    kv_fraction: float | None = None
    """The part of the device's memory for KV, between 0 and 1; None is the runner's default."""
    max_model_len: int | None = None
    """The longest prompt plus answer, in tokens; None is the model's own limit."""
    max_batch_tokens: int | None = None
    """Tokens that one step may run; decoding sequences come first, prompts get what is left. None is 1,024 on a CPU and
    8,192 on a CUDA device, less if its memory is small, and in any case as many as max_sequences needs.
    """
    max_sequences: int = 256
    """Sequences that run at once; also the widest n that one request can have."""
    max_queue: int = 2048
    """Sequences that may wait while so many run; a request for more is refused for now."""
    prefix_cache: bool = True
    """Keep the blocks of finished requests, for requests that begin alike."""
    max_logprobs: int = 20
    """How many of the likeliest tokens a client may ask for with each token."""
    tool_parser: str = "auto"
    """The model family whose syntax for tool calls the model uses; "auto" looks at its chat template, "none" leaves
    everything as text.
    """
    reasoning_parser: str = "auto"
    """The same for reasoning."""
    adapters: tuple[tuple[str, str], ...] = ()
    """LoRA adapters as (the id in the API, the adapter's folder), served beside the model itself."""
    max_responses: int = 1024
    """How many responses are kept, so that later requests can continue from them."""
    max_response_bytes: int = 64 << 20
    """How many bytes these take in all."""
    pooling: Pooling | None = None
    """How hidden states become embeddings, in place of what the model's folder says."""
    share_gate: int | None = None
    """Reading a prefix once for several rows must save at least this many tokens of KV. None is 64 on a CPU, and on a
    CUDA device as many as make 4 MiB of a layer.
    """
    seed: int | None = None
    """The base of the seeds given to requests without one; None draws it from the system."""

    def __post_init__(self) -> None:
        for name, annotation in get_type_hints(type(self)).items():
            _check_type(name, getattr(self, name), annotation)
        for name in ("block_size", "num_blocks", "max_model_len", "max_sequences"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if self.kv_fraction is not None and not 0 < self.kv_fraction < 1:
            raise ConfigError(f"kv_fraction must be between 0 and 1, not {self.kv_fraction}")
        for name in ("share_gate", "max_queue", "max_logprobs", "max_responses", "max_response_bytes"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise ConfigError(f"{name} must not be negative, not {value}")
        names = [self.served_model_name, *_adapter_names(self.adapters)]
        if self.served_model_name == "":
            raise ConfigError("served_model_name must not be empty")
        if len(set(names)) < len(names) or "" in names:
            raise ConfigError("every adapter needs a unique name")
        if self.max_batch_tokens is not None and self.max_batch_tokens < self.least_batch_tokens:
            raise ConfigError(
                f"max_batch_tokens ({self.max_batch_tokens}) must be at least max_sequences ({self.max_sequences})"
                f" plus block_size ({self.block_size})"
            )

    @property
    def least_batch_tokens(self) -> int:
        """The fewest tokens of a step.

        Every decoding sequence may run in a step, and a prompt must still advance beside them.
        """
        return self.max_sequences + self.block_size

    def batch_tokens(self, device: str) -> int:
        """Return the tokens that one step may run on a device of this type, if its memory is large enough."""
        return self.max_batch_tokens or max(_BATCH_TOKENS.get(device, 1024), self.least_batch_tokens)

    def gate(self, device: str, layer_bytes: int) -> int:
        """Return share_gate for a device of this type, on which a token takes `layer_bytes` bytes of one layer's KV."""
        if self.share_gate is not None:
            return self.share_gate
        return _CPU_GATE if device == "cpu" else -(-_GATE_BYTES // layer_bytes)

    @property
    def room(self) -> int:
        """The most sequences that run or wait at once: no request can have more, over all its prompts."""
        return self.max_sequences + self.max_queue

    def kv_blocks(self, bytes_per_token: int, memory: int, fraction: float = 0.25, cap: int | None = None) -> int:
        """Return how many blocks the pool gets: `num_blocks`, or what the memory allows.

        bytes_per_token: keys and values of all layers. memory: the bytes of which a share is taken (a CPU's RAM, a
        GPU's free memory after loading). fraction, cap: the device's defaults, used if the settings give none; a CPU's
        are a quarter of the RAM, and at most `cpu_pool`. Raises ConfigError if not even one block fits.
        """
        if self.num_blocks is not None:
            return self.num_blocks
        if self.kv_fraction is not None:
            room = int(memory * self.kv_fraction)
        else:
            room = int(memory * fraction) if cap is None else min(int(memory * fraction), cap)
        blocks = room // (bytes_per_token * self.block_size)
        if blocks < 1:
            raise ConfigError(
                f"{room} bytes for the KV cache are too few for one block of {self.block_size} tokens"
                f" of {bytes_per_token} bytes"
            )
        return blocks


def _adapter_names(adapters: Any) -> list[str]:
    try:
        pairs = [(name, folder) for name, folder in adapters]
    except (TypeError, ValueError):
        pairs = [(None, None)]
    if not all(isinstance(name, str) and isinstance(folder, str | PathLike) for name, folder in pairs):
        raise ConfigError(f"adapters must be pairs of a name and a folder, not {adapters!r}")
    return [name for name, _ in pairs]


def _check_type(name: str, value: Any, annotation: Any) -> None:
    """Raise ConfigError for a word, number or flag that the setting's annotation does not allow.

    A program may set anything; the command line and the gateway's settings file check earlier. Texts and adapters are
    not checked here.
    """
    allowed = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kind = allowed[0]
    if get_origin(kind) is Literal:
        *words, last = get_args(kind) + ((None,) if NoneType in allowed else ())
        if value not in (*words, last):
            raise ConfigError(f"{name} must be {', '.join(words)} or {last}, not {value!r}")
    if value is None and NoneType in allowed:
        return
    if kind is int and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise ConfigError(f"{name} must be an integer, not {value!r}")
    if kind is float and not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number, not {value!r}")
    if kind is bool and not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {value!r}")

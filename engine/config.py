"""The engine's settings: one frozen value, checked when it is made. No torch, no asyncio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.errors import ConfigError

_GIB = 1 << 30
_BATCH_TOKENS = {"cpu": 1024, "cuda": 8192}
"""By type of device: on a CPU neighbours wait for a prompt's part; a GPU needs that many to compute at full speed."""
_CPU_GATE = 64
"""Tokens: what is not read again pays for one more product of each layer's."""
_GATE_BYTES = 4 << 20
"""Of one layer, on a GPU: a microsecond's reading, which the partial results of one more item a row cost there."""


def cpu_pool(longest: int) -> int:
    """Bytes of KV on a CPU at most, where the longest sequence takes so many: two such, from half a GiB to one.

    What the prefix cache has filled stays resident, so a larger pool is memory that an idle engine keeps.
    """
    return min(max(2 * longest, _GIB // 2), _GIB)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What one engine runs and how much of the machine it takes.

    model: a Hugging Face folder or a .gguf file. dtype: of weights and KV; "auto" leaves it to the
    runner and the device. quantization: on a CPU, "int8" keeps the weights so and multiplies in it; None leaves them
    in dtype. served_model_name: the id on the wire; None takes the model's own name.
    block_size: tokens per KV block. num_blocks: size of the pool; None derives it from memory.
    kv_fraction: part of the device's memory for KV, between 0 and 1; None is the runner's default.
    device: where the model runs; "auto" takes a CUDA device if there is one and Triton is installed. kernels: what
    computes attention and all between the products; "auto" is Triton on a CUDA device, on a CPU "native", which the C
    compiler makes for it, and torch where there is none; Triton's run there under its interpreter only.
    cuda_graphs: on a CUDA device, replay recorded launches in decoding steps.
    deterministic: an answer is the same bit for bit whatever else runs, at some cost.
    max_model_len: longest prompt plus answer, in tokens; None is the model's own limit.
    max_batch_tokens: tokens one step may run, decoding sequences first, prompts with what is left; None is 1,024 on a
    CPU and 8,192 on a CUDA device, less where its memory is small, and in any case as many as max_sequences needs.
    max_sequences: sequences at once; also the widest n that one request can have.
    max_queue: sequences that may wait while so many run; a request for more is turned away for now.
    prefix_cache: keep the blocks of what is over, for requests that begin alike.
    max_logprobs: how many of the likeliest tokens a client may ask to be told with each.
    tool_parser, reasoning_parser: the family whose way of writing tool calls and reasoning the model has; "auto"
    looks at its chat template, "none" leaves all as text.
    adapters: LoRA adapters as (the id on the wire, the adapter's folder), served beside the model itself.
    max_responses, max_response_bytes: how much is kept of responses that may be gone on from.
    pooling: how hidden states become embeddings, in place of what the model's folder says.
    share_gate: reading a prefix once for several rows must save at least this many tokens of KV; None is 64 on a CPU,
    and on a CUDA device as many as make 4 MiB of a layer.
    seed: base of the seeds given to requests without one; None draws it from the system.
    Raises ConfigError for values that cannot work.
    """

    model: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: Literal["int8"] | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    kernels: Literal["auto", "torch", "native", "triton"] = "auto"
    cuda_graphs: bool = True
    deterministic: bool = False
    served_model_name: str | None = None
    block_size: int = 16
    num_blocks: int | None = None
    kv_fraction: float | None = None
    max_model_len: int | None = None
    max_batch_tokens: int | None = None
    max_sequences: int = 256
    max_queue: int = 2048
    prefix_cache: bool = True
    max_logprobs: int = 20
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    adapters: tuple[tuple[str, str], ...] = ()
    max_responses: int = 1024
    max_response_bytes: int = 64 << 20
    pooling: Literal["mean", "last"] | None = None
    share_gate: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        positive = {
            "block_size": self.block_size,
            "num_blocks": self.num_blocks,
            "max_model_len": self.max_model_len,
            "max_sequences": self.max_sequences,
        }
        for name, value in positive.items():
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if self.kv_fraction is not None and not 0 < self.kv_fraction < 1:
            raise ConfigError(f"kv_fraction must be between 0 and 1, not {self.kv_fraction}")
        for name in ("share_gate", "max_queue", "max_logprobs", "max_responses", "max_response_bytes"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise ConfigError(f"{name} must not be negative, not {value}")
        names = [self.served_model_name, *(name for name, _ in self.adapters)]
        if len(set(names)) < len(names) or "" in names:
            raise ConfigError("every adapter needs a unique name")
        if self.max_batch_tokens is not None and self.max_batch_tokens < self.least_batch_tokens:
            raise ConfigError(
                f"max_batch_tokens ({self.max_batch_tokens}) must be at least max_sequences ({self.max_sequences})"
                f" plus block_size ({self.block_size})"
            )

    @property
    def least_batch_tokens(self) -> int:
        """Every decoding sequence runs in every step, and a prompt must still move forward beside them."""
        return self.max_sequences + self.block_size

    def batch_tokens(self, device: str) -> int:
        """Tokens that one step may run on a device of this type, if its memory is large enough."""
        return self.max_batch_tokens or max(_BATCH_TOKENS.get(device, 1024), self.least_batch_tokens)

    def gate(self, device: str, layer_bytes: int) -> int:
        """share_gate on a device of this type, where a token takes so many bytes of one layer's KV."""
        if self.share_gate is not None:
            return self.share_gate
        return _CPU_GATE if device == "cpu" else -(-_GATE_BYTES // layer_bytes)

    @property
    def room(self) -> int:
        """Sequences that run or wait at once at most: no request can have more, of all its prompts together."""
        return self.max_sequences + self.max_queue

    def kv_blocks(self, bytes_per_token: int, memory: int, fraction: float = 0.25, cap: int | None = None) -> int:
        """How many blocks the pool gets: `num_blocks`, or what the memory allows.

        bytes_per_token: keys and values of all layers. memory: bytes the share is taken of (a CPU's RAM,
        a GPU's free memory after loading). fraction, cap: the device's defaults, used where the settings
        name none; a CPU's are a quarter of the RAM, and at most `cpu_pool`. Raises ConfigError when not even
        one block fits.
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

"""The settings of the built-in engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from nproxy.config.sections import Settings, conflict, refuse
from nproxy.config.values import AdapterName, Count, Folder, Part, Seconds, Whole

DEFAULT_MODEL = "smollm2-135m-instruct"
ENGINE_UPSTREAM = "engine"
"""The name of the built-in engine among the upstreams."""

ToolParser = Literal[
    "auto",
    "none",
    "hermes",
    "qwen3-coder",
    "seed-oss",
    "glm",
    "llama3",
    "mistral",
    "mistral-v11",
    "deepseek",
    "deepseek-v3.1",
    "json",
    "gpt-oss",
]
ReasoningParser = Literal["auto", "none", "think", "mistral", "seed-oss", "gpt-oss"]
"""The engine's model families; a test compares them with the engine's own list."""

DEFAULT_SEQUENCES, DEFAULT_BLOCK = 256, 16
"""The defaults of the engine's own max_sequences and block_size; the same test compares them."""
FIXED_SPAN = 256
"""Tokens that deterministic mode always takes together, in whole blocks; the same test compares it."""


class Engine(Settings):
    """The built-in engine, started as a child process."""

    model: Annotated[str, Field(min_length=1)] = DEFAULT_MODEL
    """The default model's id, a hub id (org/name) or a GGUF file there (org/name/file.gguf), a folder in the Hugging
    Face layout, or a .gguf file."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The data type in which the model computes."""
    quantization: Literal["int8"] | None = None
    """On a CPU, store the model's weights as int8 and multiply in int8: less memory, faster, other scores."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to run on; auto: a CUDA device if there is one."""
    kernels: Literal["auto", "torch", "native", "triton"] = "auto"
    """The kernels to use; auto: Triton's on a CUDA device; on a CPU native (in C, with a compiler) or torch's."""
    cuda_graphs: bool = True
    """On a CUDA device, run decode steps by replaying recorded kernel launches."""
    deterministic: bool = False
    """Give bit-for-bit the same answer whatever else runs; without kernels in C much slower."""
    max_model_len: Count | None = None
    """Maximum length of prompt and answer together, in tokens; null: the model's own maximum. A linear rope scaling
    allows its factor times as many.
    """
    max_sequences: Count | None = None
    """Maximum number of choices that run in one step; null: 256."""
    max_batch_tokens: Count | None = None
    """Maximum number of tokens computed in one step; null: 1024 on a CPU, 8192 on a CUDA device if its memory allows
    it."""
    max_queue: Whole | None = None
    """Maximum number of choices that wait while max_sequences run; beyond it, requests get 429; null: 2048."""
    block_size: Count | None = None
    """Tokens in a block of the KV cache; in deterministic mode it must divide 256; null: 16."""
    num_blocks: Count | None = None
    """Number of blocks of the KV cache; null: as many as fit in the free memory."""
    kv_fraction: Part | None = None
    """Fraction of the memory for the KV cache, instead of num_blocks; null: 0.9 on a GPU; on a CPU half a GiB to one
    GiB, and at most 1/4."""
    prefix_cache: bool = True
    """Keep the KV cache of prompts and answers for later requests that begin with the same tokens."""
    max_logprobs: Whole | None = None
    """Maximum number of top log probabilities per token that a request may ask for; null: 20."""
    tool_parser: ToolParser = "auto"
    """How the model writes tool calls; auto: as its chat template shows; none: the whole answer is text."""
    reasoning_parser: ReasoningParser = "auto"
    """How the model writes reasoning; auto: as its chat template shows; none: the whole answer is text."""
    max_responses: Whole | None = None
    """Maximum number of responses stored for requests that continue them; null: 1024."""
    max_response_bytes: Whole | None = None
    """Maximum size of all stored responses together, in bytes; null: 67108864 (64 MiB)."""
    pooling: Literal["mean", "last"] | None = None
    """How hidden states become embeddings, for a model whose folder does not say so."""
    adapters: dict[AdapterName, Folder] = Field(default_factory=dict)
    """LoRA adapters: a map of the model id under which an adapter is served to its folder."""
    seed: int | None = None
    """Base of the seeds of requests without one; null: a new one at each start."""
    stall_seconds: Seconds = 60
    """If the engine has work and gives no token for so many seconds, it counts as hung and is restarted."""

    @model_validator(mode="after")
    def _keys_agree(self, info: ValidationInfo) -> Self:
        interpreted = (info.context or {}).get("environ", os.environ).get("TRITON_INTERPRET") == "1"
        refuse(
            info,
            self._cache_conflict(),
            self._batch_conflict(),
            self._block_conflict(),
            self._kernels_conflict(interpreted),
            self._quantization_conflict(),
            self._names_conflict(),
        )
        return self

    def _cache_conflict(self) -> Iterator[PydanticCustomError]:
        if self.num_blocks is not None and self.kv_fraction is not None:
            yield conflict("must not be set together with num_blocks", "engine", "kv_fraction")

    def _batch_conflict(self) -> Iterator[PydanticCustomError]:
        if self.max_batch_tokens is not None:
            sequences, block = self.max_sequences or DEFAULT_SEQUENCES, self.block_size or DEFAULT_BLOCK
            if self.max_batch_tokens < sequences + block:
                least = f"must be at least max_sequences ({sequences}) plus block_size ({block})"
                yield conflict(least, "engine", "max_batch_tokens")

    def _block_conflict(self) -> Iterator[PydanticCustomError]:
        if self.deterministic and FIXED_SPAN % (self.block_size or DEFAULT_BLOCK):
            yield conflict(f"must divide {FIXED_SPAN} in deterministic mode", "engine", "block_size")

    def _kernels_conflict(self, interpreted: bool) -> Iterator[PydanticCustomError]:
        if self.device == "cuda" and self.kernels in ("torch", "native"):
            yield conflict("must be auto or triton on a CUDA device: the others are for a CPU", "engine", "kernels")
        if (self.device, self.kernels) == ("cpu", "triton") and not interpreted:
            yield conflict("must not be triton on a CPU: Triton has no compiler for it", "engine", "kernels")

    def _quantization_conflict(self) -> Iterator[PydanticCustomError]:
        if self.quantization is not None and (self.device == "cuda" or self.kernels == "triton"):
            yield conflict("is supported on a CPU only", "engine", "quantization")

    def _names_conflict(self) -> Iterator[PydanticCustomError]:
        if self.model in self.adapters:
            yield conflict("is already the id of the model itself", "engine", "adapters", self.model)

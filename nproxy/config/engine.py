"""The settings of the built-in engine."""

from __future__ import annotations

import os
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from nproxy.config.values import AdapterName, Count, Part, Seconds, Settings, Whole, conflict

DEFAULT_MODEL = "smollm2-135m-instruct"
ENGINE_UPSTREAM = "engine"
"""The name under which the built-in engine stands among the upstreams."""

ToolParser = Literal[
    "auto", "none", "hermes", "llama3", "mistral", "mistral-v11", "deepseek", "deepseek-v3.1", "json", "gpt-oss"
]
ReasoningParser = Literal["auto", "none", "think", "mistral", "gpt-oss"]
"""The engine's families; a test compares them with its own list."""

DEFAULT_SEQUENCES, DEFAULT_BLOCK = 256, 16
"""The engine's own max_sequences and block_size; the same test compares them."""


class Engine(Settings):
    """The built-in engine, started as a child process."""

    model: Annotated[str, Field(min_length=1)] = DEFAULT_MODEL
    """The default model's id, a hub id (org/name) or GGUF file there (org/name/file.gguf), a folder of the Hugging
    Face layout, or a .gguf file."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """What the model computes in."""
    quantization: Literal["int8"] | None = None
    """On a CPU, keep the model's weights in int8 and multiply in it: less memory, quicker, nearly the same scores."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it runs; auto: on a CUDA device where there is one."""
    kernels: Literal["auto", "torch", "native", "triton"] = "auto"
    """By which kernels; auto: Triton's on a CUDA device; on a CPU native (in C, if a compiler is there) or torch's."""
    cuda_graphs: bool = True
    """On a CUDA device, replay recorded launches in decoding steps."""
    deterministic: bool = False
    """Give the same answer bit for bit whatever else runs, at some cost."""
    max_model_len: Count | None = None
    """Longest prompt and answer together, in tokens; null: what the model was made for."""
    max_sequences: Count | None = None
    """Most choices that run in one step; null: 256."""
    max_batch_tokens: Count | None = None
    """Most tokens computed in one step; null: 1024 on a CPU, 8192 on a CUDA device if its memory allows it."""
    max_queue: Whole | None = None
    """Most choices that wait while max_sequences run, then 429; null: 2048."""
    block_size: Count | None = None
    """Tokens in a block of the KV cache; null: 16."""
    num_blocks: Count | None = None
    """Blocks of the KV cache; null: from the memory that is free."""
    kv_fraction: Part | None = None
    """Part of the memory for the KV cache, in place of num_blocks; null: 0.9 on a GPU, a quarter at most on a CPU."""
    prefix_cache: bool = True
    """Keep what was computed for a prompt and its answers, for requests that begin alike."""
    max_logprobs: Whole | None = None
    """Most of the likeliest tokens that a request may ask to be told with each; null: 20."""
    tool_parser: ToolParser = "auto"
    """How the model writes tool calls; auto: what its chat template shows; none: all is text."""
    reasoning_parser: ReasoningParser = "auto"
    """How the model writes reasoning; auto: what its chat template shows; none: all is text."""
    max_responses: Whole | None = None
    """Most responses kept for requests that go on from them; null: 1024."""
    max_response_bytes: Whole | None = None
    """Most bytes of all of them together; null: 67108864 (64 MiB)."""
    pooling: Literal["mean", "last"] | None = None
    """How hidden states become embeddings, for a model whose folder does not say."""
    adapters: dict[AdapterName, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    """LoRA adapters: under which model id each is served, and its folder."""
    seed: int | None = None
    """Base of the seeds of requests without one; null: another at each start."""
    stall_seconds: Seconds = 60
    """An engine that has work and gives no token for so long counts as hung and is started again."""

    @model_validator(mode="after")
    def _memory_agrees(self) -> Self:
        if self.num_blocks is not None and self.kv_fraction is not None:
            raise conflict("must not stand beside num_blocks", "engine", "kv_fraction")
        if self.max_batch_tokens is not None:
            sequences, block = self.max_sequences or DEFAULT_SEQUENCES, self.block_size or DEFAULT_BLOCK
            if self.max_batch_tokens < sequences + block:
                least = f"must be at least max_sequences ({sequences}) plus block_size ({block})"
                raise conflict(least, "engine", "max_batch_tokens")
        return self

    @model_validator(mode="after")
    def _road_agrees(self, info: ValidationInfo) -> Self:
        if self.device == "cuda" and self.kernels in ("torch", "native"):
            raise conflict("must be triton on a CUDA device: the others are for a CPU", "engine", "kernels")
        interpreted = (info.context or {}).get("environ", os.environ).get("TRITON_INTERPRET") == "1"
        if (self.device, self.kernels) == ("cpu", "triton") and not interpreted:
            raise conflict("must be torch on a CPU: Triton compiles none for it", "engine", "kernels")
        if self.quantization is not None and (self.device == "cuda" or self.kernels == "triton"):
            raise conflict("is for a CPU", "engine", "quantization")
        return self

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        if self.model in self.adapters:
            raise conflict("is the name of the model itself", "engine", "adapters", self.model)
        return self

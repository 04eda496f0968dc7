"""The configuration as a type: attribute names are the keys of the YAML file.

Only keys whose function exists stand here; `planned` knows those that are promised for later, so that
they are refused with a word of explanation and never silently ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from nproxy.config.values import (
    AdapterName,
    ApiKey,
    Count,
    Host,
    Mebibytes,
    Models,
    NMode,
    Parallel,
    Part,
    Paths,
    Port,
    Replicas,
    Seconds,
    SecondsOrZero,
    Settings,
    Share,
    Whole,
    Width,
)

DEFAULT_MODEL = "smollm2-135m-instruct"
ENGINE_UPSTREAM = "engine"
"""The name under which the built-in engine stands among the upstreams."""


class Listen(Settings):
    """Where the gateway listens."""

    host: Host = "127.0.0.1"
    """Address or name to bind; `::` or `0.0.0.0` for all."""
    port: Port = 8000
    """TCP port; 0 takes a free one."""
    workers: Literal[1] = 1
    """Gateway processes."""
    drain_seconds: SecondsOrZero = 30
    """How long requests in flight may go on after SIGTERM."""


ToolParser = Literal[
    "auto", "none", "hermes", "llama3", "mistral", "mistral-v11", "deepseek", "deepseek-v3.1", "json", "gpt-oss"
]
ReasoningParser = Literal["auto", "none", "think", "mistral", "gpt-oss"]
"""The engine's families; a test compares them with its own list."""


class Engine(Settings):
    """The built-in engine, started as a child process."""

    model: Annotated[str, Field(min_length=1)] = DEFAULT_MODEL
    """The default model's id, a hub id (org/name), a folder of the Hugging Face layout, or a .gguf file."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """What the model computes in."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it runs; auto: on a CUDA device where there is one."""
    kernels: Literal["auto", "torch", "triton"] = "auto"
    """By which kernels; auto: Triton's on a CUDA device, torch's on a CPU."""
    cuda_graphs: bool = True
    """On a CUDA device, replay recorded launches in decoding steps."""
    deterministic: bool = False
    """Give the same answer bit for bit whatever else runs, at some cost."""
    max_model_len: Count | None = None
    """Longest prompt and answer together, in tokens; null: what the model was made for."""
    max_sequences: Count | None = None
    """Most choices that run in one step; null: the engine's own default."""
    max_batch_tokens: Count | None = None
    """Most tokens computed in one step; null: 1024 on a CPU, 8192 on a CUDA device if its memory allows it."""
    max_queue: Whole | None = None
    """Most choices that wait while max_sequences run, then 429; null: the engine's own default."""
    block_size: Count | None = None
    """Tokens in a block of the KV cache; null: the engine's own default."""
    num_blocks: Count | None = None
    """Blocks of the KV cache; null: from the memory that is free."""
    kv_fraction: Part | None = None
    """Part of the memory for the KV cache, in place of num_blocks; null: the engine's own default."""
    prefix_cache: bool = True
    """Keep what was computed for a prompt and its answers, for requests that begin alike."""
    max_logprobs: Whole | None = None
    """Most of the likeliest tokens that a request may ask to be told with each; null: the engine's own default."""
    tool_parser: ToolParser = "auto"
    """How the model writes tool calls; auto: what its chat template shows; none: all is text."""
    reasoning_parser: ReasoningParser = "auto"
    """How the model writes reasoning; auto: what its chat template shows; none: all is text."""
    max_responses: Whole | None = None
    """Most responses kept for requests that go on from them; null: the engine's own default."""
    max_response_bytes: Whole | None = None
    """Most bytes of all of them together; null: the engine's own default."""
    pooling: Literal["mean", "last"] | None = None
    """How hidden states become embeddings, for a model whose folder does not say."""
    adapters: dict[AdapterName, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    """LoRA adapters: under which model id each is served, and its folder."""
    seed: int | None = None
    """Base of the seeds of requests without one; null: another at each start."""
    stall_seconds: Seconds = 60
    """An engine that has work and gives no token for so long counts as hung and is started again."""


class Timeouts(Settings):
    """How long an upstream may take, in seconds. null: no limit."""

    connect: Seconds | None = 5
    """Until the connection stands."""
    first_event: Seconds | None = 120
    """From sending the call to the first event of a stream."""
    idle: Seconds | None = 60
    """Between two events of a stream."""
    response: Seconds | None = 600
    """From sending the call to the whole body, for calls answered in JSON form."""
    total: Seconds | None = None
    """The whole call."""


class Retries(Settings):
    """When a call is made again; only ever before its first event."""

    per_leg: Whole = 1
    """Most retries of one leg."""
    budget: Share = 0.2
    """Share of the calls of the last 10 s that may be retries (10 a second are always allowed)."""


class Upstream(Settings):
    """A named group of replicas that serve the same models behind one policy."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """Shown in metrics, logs and the x-nproxy-upstream header."""
    replicas: Replicas
    """Base URLs, as in http://10.0.0.1:8000/v1; or unix:/path of a socket."""
    models: Models = "auto"
    """auto: ask the upstream; or a list of ids; or a map of alias to the upstream's own name."""
    api_key: ApiKey = "passthrough"
    """passthrough: the client's Authorization goes on; none: nothing is sent; else the key to send."""
    n: NMode = "auto"
    """Whether `n` is sent: auto tries and counts, native always, fanout never, or up to a width."""
    wire: Literal["auto", "exact"] = "auto"
    """exact: the server is nproxy's own engine, whose bytes need no mending."""
    parallel: Parallel = "auto"
    """Legs at once per replica; further ones wait in order. auto: no limit."""
    seed: Literal["auto", "send", "omit"] = "auto"
    """Whether seeds are sent."""
    prefix_cache: bool = False
    """true: all legs go to one replica, and the first computes the prompt before the others start."""
    usage: Literal["auto", "stream"] = "auto"
    """stream: usage of whole answers counts one choice only (llama.cpp); calls for several are asked for as streams."""
    prompts: Literal["auto", "one"] = "auto"
    """one: legacy completions take one prompt, no list of them (transformers serve); each prompt is a call."""
    timeouts: Timeouts = Timeouts()
    """How long the upstream may take."""
    retries: Retries = Retries()
    """When a call is made again."""


class NPolicy(Settings):
    """What nproxy does about `n`."""

    max_n: Width = 128
    """Widest `n` that a request may ask for; prompts x n never goes beyond 512."""
    greedy: Literal["accept", "reject", "dedupe"] = "accept"
    """n > 1 at temperature 0: accept computes all, reject answers 400, dedupe computes one and shows it n times."""
    on_leg_failure: Literal["fail", "partial"] = "fail"
    """When a leg fails for good: fail answers with an error, partial with the choices that came."""


class Passthrough(Settings):
    """Which other paths go to an upstream as they are."""

    paths: Paths = "default"
    """default: the known inference endpoints; all: every path; or a list of paths."""
    upstream: str | None = None
    """Where they go when the body names no known model; null: to the only upstream."""


class Limits(Settings):
    """What one client or all together may take."""

    body_mib: Mebibytes = 10
    """Largest request body, in MiB."""
    inflight_choices: Count = 1024
    """Choices in flight in all; beyond: 429."""
    write_seconds: Seconds = 60
    """A client that reads nothing for so long has its request ended."""


class Stream(Settings):
    """How streams are kept alive."""

    ping_seconds: Seconds | None = 15
    """Silence after which a comment is sent; null: never."""
    headers_after_seconds: Seconds | None = 30
    """Without an event by then, the 200 is sent; null: wait for the first event."""


class Telemetry(Settings):
    """What the gateway tells about itself."""

    metrics: bool = True
    """Whether GET /metrics is served."""
    log_format: Literal["json", "text"] = "json"
    """How log lines are written."""


class Config(Settings):
    """The whole configuration. Without an engine and upstreams, the engine runs with the default model."""

    listen: Listen = Listen()
    engine: Engine | None = None
    upstreams: tuple[Upstream, ...] = ()
    n_policy: NPolicy = NPolicy()
    passthrough: Passthrough = Passthrough()
    limits: Limits = Limits()
    stream: Stream = Stream()
    telemetry: Telemetry = Telemetry()

    @model_validator(mode="before")
    @classmethod
    def _default_to_the_engine(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("engine") and not data.get("upstreams") and "engine" not in data:
            return {**data, "engine": {}}
        return data

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        if self.engine is None and not self.upstreams:
            raise conflict("needs an engine or at least one upstream")
        names: list[str] = [] if self.engine is None else [ENGINE_UPSTREAM]
        for position, upstream in enumerate(self.upstreams):
            if upstream.name in names:
                taken_by = "the built-in engine" if upstream.name == ENGINE_UPSTREAM else "another upstream"
                raise conflict(f"is taken by {taken_by}", "upstreams", position, "name")
            names.append(upstream.name)
        if self.passthrough.upstream is not None and self.passthrough.upstream not in names:
            raise conflict(f"names no upstream; there are: {', '.join(names)}", "passthrough", "upstream")
        if self.n_policy.max_n > self.limits.inflight_choices:
            raise conflict("must not be below n_policy.max_n", "limits", "inflight_choices")
        return self


def conflict(message: str, *path: str | int) -> PydanticCustomError:
    """An error between several keys, told at the key of `path` (the loader reads it from the context)."""
    return PydanticCustomError("conflict", "{message}", {"message": message, "path": path})

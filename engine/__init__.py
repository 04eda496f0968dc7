"""nproxy's built-in engine: a server (`python -m engine`), and a library (`from engine import Engine`).

What the library needs, including torch, is imported when it is first used, not by `import engine`.

The terms that the code uses, each with one meaning:

group: One request in the core is a group: a prompt with its choices, or a prompt to embed.
choice: A choice is one of the n answers of a request, OpenAI's own word.
sequence: A sequence is the core's state of one choice: its tokens, its block table, and where it stands.
leader, follower: The leader is the sequence that computes its group's prompt, and its followers wait for that.
fork: A fork gives the leader's block table to a follower, so that both hold the same blocks.
block: A block is the unit of the KV cache, a fixed number of tokens' keys and values in all layers.
block table: A block table lists the blocks of one sequence in the order of its tokens.
slot: A slot is the place of one token's keys and values in the cache.
prefix cache: Blocks that no sequence holds any more stay known by their keys, for requests that begin alike.
key: A block's key is a hash of its tokens and of all tokens before them.
claim: A group that has waited long enough has a claim to places that a wider group then gives up.
preemption: A preempted sequence gives its blocks back, waits in the queue, and is computed again later.
adapter: A LoRA adapter adds to the model's products for the tokens that run with it.
step: A step is one round of the core: it schedules and submits a batch, and reports the oldest result.
batch: A batch is the work of one step as plain values: copies of blocks, chunks and rows.
chunk: A chunk is a stretch of one sequence's known tokens that a step computes at once.
row: A row is a decoding sequence in a step, whose newest token is run to draw the next one.
draw: A draw is one token to be drawn for one sequence from one row of logits.
in flight: A step is in flight from when it is scheduled until its result is received.
pass: A pass is one run of tokens through the model, and only in deterministic mode does a step have several.
replay: In deterministic mode a preempted sequence replays its drawn tokens one row at a time.
cut: In deterministic mode a row's attention is cut behind the whole blocks of its prompt.
runner: A runner executes batches with a loaded model and its KV cache.
backend: A backend is a device with the kernels for what a model computes between its matrix products.
KV span: A KV span is a range of key positions that some rows read together.
gate: A span is shared only if that saves at least as many reads of tokens as the gate says.
item: An item is a piece of a KV span and one entry of the work list of decode attention.
partial result: A row has a partial result for each of its items, and these are merged by their log-sum-exps.
plan: A plan is what the layers' attention needs to know of one step, made once per step.
gathered: What a prompt's chunks return besides keys and values is gathered until the prompt is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.errors import ConfigError, EngineError, ModelError, RequestError
    from engine.library import (
        Answer,
        Choice,
        Content,
        Delta,
        Engine,
        Logprobs,
        Reasoning,
        ToolArguments,
        ToolStart,
        Usage,
    )

__all__ = [
    "Answer",
    "Choice",
    "ConfigError",
    "Content",
    "Delta",
    "Engine",
    "EngineError",
    "Logprobs",
    "ModelError",
    "Reasoning",
    "RequestError",
    "ToolArguments",
    "ToolStart",
    "Usage",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'engine' has no attribute '{name}'")
    from engine import errors, library

    return getattr(errors if name.endswith("Error") else library, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

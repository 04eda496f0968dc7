"""The order of a step's tokens as they run: the chunks' tokens in order, then one per row. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from engine.batch import Batch, Chunk


def chunks_at(batch: Batch) -> Iterator[tuple[Chunk, int]]:
    """Yield the chunks, each with the index of its first token."""
    begin = 0
    for chunk in batch.chunks:
        yield chunk, begin
        begin += len(chunk.tokens)


def drawn_from(batch: Batch) -> tuple[list[int], list[int]]:
    """Return the tokens whose logits are drawn from; and per draw, in the order of StepOutput, the index into these."""
    tokens: list[int] = []
    which: list[int] = []
    end = 0
    for chunk, begin in chunks_at(batch):
        end = begin + len(chunk.tokens)
        if chunk.draws:
            which += [len(tokens)] * len(chunk.draws)
            tokens.append(end - 1)
    for number, row in enumerate(batch.rows, end):
        if row.draw is not None:
            which.append(len(tokens))
            tokens.append(number)
    return tokens, which


def wanted(batch: Batch) -> list[int] | None:
    """Return the tokens after which something is asked for: a draw, log probabilities or a hidden state; and all rows.

    None if these are all tokens. Nobody looks at what the last layer makes of the others.
    """
    tokens: list[int] = []
    end = 0
    for chunk, begin in chunks_at(batch):
        end = begin + len(chunk.tokens)
        if chunk.pooling == "mean":
            tokens += range(begin, end)
            continue
        tokens += range(begin, begin + len(chunk.next_tokens))
        if (chunk.draws or (chunk.pooling and chunk.last)) and tokens[-1:] != [end - 1]:
            tokens.append(end - 1)
    tokens += range(end, end + len(batch.rows))
    return None if len(tokens) == end + len(batch.rows) else tokens


def adapted(batch: Batch) -> dict[str, list[int]]:
    """Return which tokens run with which adapter."""
    tokens: dict[str, list[int]] = {}
    end = 0
    for chunk, begin in chunks_at(batch):
        end = begin + len(chunk.tokens)
        if chunk.adapter is not None:
            tokens.setdefault(chunk.adapter, []).extend(range(begin, end))
    for number, row in enumerate(batch.rows, end):
        if row.adapter is not None:
            tokens.setdefault(row.adapter, []).append(number)
    return tokens

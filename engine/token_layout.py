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

"""Edits of logits in torch: everything that a request says about single tokens, before temperature and the cuts.

Only rows that need it are copied, and they are edited together: everything becomes pairs of (row, token) in flat index
lists, so the number of torch calls depends on the kinds of edits and not on the number of rows.

Shapes: N rows of logits, V vocabulary, E edited rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.batch import Draw
from engine.sampling.rules import Change, Rules, fitted
from engine.sampling.tally import Ids

# For each byte of a mask, what is added to its eight tokens: bit t is token t's, 1 allows it.
_OF_BYTE = torch.tensor([[0.0 if byte >> bit & 1 else -torch.inf for bit in range(8)] for byte in range(256)])


@dataclass(frozen=True, slots=True)
class Edited:
    """Rows of logits after their edits: scores [E, V] float32; per draw, its row. A row may have no token left."""

    scores: torch.Tensor
    rows: list[int]


class Edits:
    """Edits a step's rows."""

    def __init__(self) -> None:
        self._rules = Rules()

    def step(self) -> None:
        """Begin a step: forget the sequences that neither of the last two steps drew for (ADR 0021)."""
        self._rules.step()

    def apply(
        self, logits: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw], masks: Mapping[int, bytes]
    ) -> Edited:
        """Return the rows of logits [N, V] that `draws` draw from, the i-th from rows[i], with each draw's edits.

        Draws with the same edits of the same row, which have the same past, still share it.
        """
        changes, which = self._rules.changes(rows, draws, masks, logits.shape[1])
        scores = logits.index_select(0, torch.tensor([change.row for change in changes])).float()
        _mask_(scores, changes)
        _allow_(scores, changes)
        _exclude_(scores, changes)
        _bias_(scores, changes)
        _penalize_(scores, changes)
        return Edited(scores, which)


def _mask_(scores: torch.Tensor, changes: Sequence[Change]) -> None:
    """Exclude what grammars do not allow."""
    masked = [(i, change.mask) for i, change in enumerate(changes) if change.mask is not None]
    if not masked:
        return
    whole = b"".join([fitted(mask, scores.shape[1]) for _, mask in masked])
    values = torch.frombuffer(bytearray(whole), dtype=torch.uint8).int()
    added = _OF_BYTE.index_select(0, values).view(len(masked), -1)[:, : scores.shape[1]]
    if len(masked) == len(scores):
        scores += added
    else:
        scores.index_add_(0, torch.tensor([i for i, _ in masked]), added)


def _allow_(scores: torch.Tensor, changes: Sequence[Change]) -> None:
    """Exclude all but the allowed tokens."""
    limited = [(i, change.allowed) for i, change in enumerate(changes) if change.allowed is not None]
    if limited:
        at = _flat(limited, scores)
        kept = scores.view(-1).index_select(0, at)
        scores.index_fill_(0, torch.tensor([i for i, _ in limited]), -torch.inf)
        scores.view(-1).scatter_(0, at, kept)


def _exclude_(scores: torch.Tensor, changes: Sequence[Change]) -> None:
    """Exclude tokens that would complete one of the bad words, and those that are banned for now."""
    excluded = [(i, change.excluded) for i, change in enumerate(changes) if len(change.excluded)]
    if excluded:
        scores.view(-1).scatter_(0, _flat(excluded, scores), -torch.inf)


def _bias_(scores: torch.Tensor, changes: Sequence[Change]) -> None:
    biased = [(i, change) for i, change in enumerate(changes) if len(change.biased)]
    if biased:
        at = _flat([(i, change.biased) for i, change in biased], scores)
        scores.view(-1).index_add_(0, at, torch.from_numpy(np.concatenate([change.bias for _, change in biased])))


def _penalize_(scores: torch.Tensor, changes: Sequence[Change]) -> None:
    """Apply the penalties.

    Repetition (CTRL, Keskar et al. 2019: divide what is above 0, multiply what is below) over prompt and output; then
    frequency times count, and presence once, over the output (OpenAI's formula).
    """
    tallies = [(i, change.tally, change.sampling) for i, change in enumerate(changes) if change.tally is not None]
    if not tallies:
        return
    at = _flat([(i, tally.tokens) for i, tally, _ in tallies], scores)
    sizes = torch.tensor([len(tally.tokens) for _, tally, _ in tallies])
    settings = [(s.repetition_penalty, s.frequency_penalty, s.presence_penalty) for *_, s in tallies]
    repetition, frequency, presence = torch.tensor(settings).repeat_interleave(sizes, 0).unbind(1)
    counts = torch.from_numpy(np.concatenate([tally.counts for _, tally, _ in tallies]))
    values = scores.view(-1).index_select(0, at)
    values = torch.where(values > 0, values / repetition, values * repetition)
    scores.view(-1).scatter_(0, at, values - frequency * counts - presence * (counts > 0))


def _flat(tokens: Sequence[tuple[int, Ids]], scores: torch.Tensor) -> torch.Tensor:
    """Return the indices of (row, its tokens) into scores [E, V] flattened."""
    width = scores.shape[1]
    return torch.from_numpy(np.concatenate([row * width + ids for row, ids in tokens]))

"""Edits of logits: all that a request says about single tokens, before temperature and the cuts.

In vLLM's order (docs.vllm.ai, vllm.v1.sample.sampler; there the grammar's mask goes ahead of the sampler):
grammar, allowed tokens, bad words, stop tokens that come too early, bias, then the penalties: repetition,
frequency, presence. Exclusion is a logit of -inf, which the later ones leave as it is.

Only rows that need it are copied, and edited together: everything becomes pairs of (row, token) in flat
index lists, so the number of torch calls depends on the kinds of edits and not on the rows.

Shapes: N rows of logits, V vocabulary, E edited rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from engine.batch import Draw, Past
from engine.messages import Sampling
from engine.sampling.tally import Ids, Kept, Tally

# Of each byte of a mask, what its eight tokens get: bit t is token t's, 1 lets it through.
_OF_BYTE = torch.tensor([[0.0 if byte >> bit & 1 else -torch.inf for bit in range(8)] for byte in range(256)])


@dataclass(frozen=True, slots=True)
class Edited:
    """Rows of logits after their edits: scores [E, V] float32; per draw, its row. A row may have no token left."""

    scores: torch.Tensor
    rows: list[int]


@dataclass(frozen=True, slots=True)
class _Rules:
    """What of a Sampling names tokens, as arrays; ids that the model does not have are left out."""

    allowed: Ids
    biased: Ids
    bias: npt.NDArray[np.float32]
    bad: Ids  # bad words of a single token
    ends: Mapping[tuple[int, ...], list[int]]  # last tokens of the longer ones, by the tokens before
    tails: tuple[int, ...]  # how many tokens these are, each number once, rising

    @classmethod
    def of(cls, sampling: Sampling, vocabulary: int) -> _Rules:
        biased = [(token, bias) for token, bias in sampling.logit_bias if token < vocabulary]
        ends: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for *before, last in sampling.bad_words:
            ends[tuple(before)].append(last)
        return cls(
            _known(sampling.allowed_tokens or (), vocabulary),
            np.array([token for token, _ in biased], dtype=np.int64),
            np.array([bias for _, bias in biased], dtype=np.float32),
            _known(ends.pop((), ()), vocabulary),
            ends,
            tuple(sorted({len(before) for before in ends})),
        )


@dataclass(frozen=True, slots=True)
class _Row:
    """One row to edit: the draw that says how (the first of those who want the same), its rules, its mask."""

    draw: Draw
    rules: _Rules
    mask: bytes | None


class Edits:
    """Edits a step's rows, and keeps what does not change from one step to the next."""

    def __init__(self) -> None:
        self._rules: Kept[_Rules] = Kept()  # by Sampling
        self._tallies: Kept[Tally] = Kept()  # by prompt and output

    def step(self) -> None:
        """Begin a step: forget the sequences that the last one did not draw for."""
        self._rules.step()
        self._tallies.step()

    def apply(
        self, logits: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw], masks: Mapping[int, bytes]
    ) -> Edited:
        """The rows of logits [N, V] that `draws` draw from, the i-th from rows[i], as each of them wants it.

        Draws that share a row and want the same of it (the n choices that leave prefill together) share it
        still. Every draw whose Sampling looks at the past brings it.
        """
        vocabulary = logits.shape[1]
        places: dict[tuple[int, int, frozenset[int], bytes | None], int] = {}
        wanted: list[_Row] = []
        which: list[int] = []
        for row, draw in zip(rows, draws, strict=True):
            mask, sampling = masks.get(draw.sequence), draw.sampling
            place = places.setdefault((row, id(sampling), draw.banned, mask), len(wanted))
            if place == len(wanted):
                rules = self._rules.of((sampling,), partial(_Rules.of, sampling, vocabulary))
                wanted.append(_Row(draw, rules, mask))
            which.append(place)
        scores = logits.index_select(0, torch.tensor([row for row, *_ in places])).float()
        _mask_(scores, wanted)
        _allow_(scores, wanted)
        _exclude_(scores, wanted)
        _bias_(scores, wanted)
        self._penalize_(scores, wanted)
        return Edited(scores, which)

    def _penalize_(self, scores: torch.Tensor, wanted: Sequence[_Row]) -> None:
        """Repetition (CTRL, Keskar et al. 2019: divide what is above 0, multiply what is below) over prompt and
        output; then frequency times count and presence, once, over the output (OpenAI's formula)."""
        tallies = [
            (i, self._tally(row.draw), row.draw.sampling) for i, row in enumerate(wanted) if _penalized(row.draw)
        ]
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

    def _tally(self, draw: Draw) -> Tally:
        past = _past(draw)
        # Only repetition looks at the prompt.
        prompt = past.prompt if draw.sampling.repetition_penalty != 1 else ()
        tally = self._tallies.of((prompt, past.output), partial(Tally, prompt))
        tally.take(past.output)
        return tally


def edited(draw: Draw, masks: Mapping[int, bytes]) -> bool:
    """Whether anything is to be done to a draw's row before temperature."""
    return bool(draw.banned) or draw.sequence in masks or draw.sampling.edits


def _penalized(draw: Draw) -> bool:
    sampling = draw.sampling
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1)


def _mask_(scores: torch.Tensor, wanted: Sequence[_Row]) -> None:
    """Exclude what grammars do not let through, and tokens beyond a mask: a tokenizer may know fewer than the model."""
    masked = [(i, row.mask) for i, row in enumerate(wanted) if row.mask is not None]
    if not masked:
        return
    width = -(-scores.shape[1] // 8)  # bytes
    whole = b"".join([mask[:width].ljust(width, b"\0") for _, mask in masked])
    values = torch.frombuffer(bytearray(whole), dtype=torch.uint8).int()
    added = _OF_BYTE.index_select(0, values).view(len(masked), -1)[:, : scores.shape[1]]
    if len(masked) == len(scores):
        scores += added
    else:
        scores.index_add_(0, torch.tensor([i for i, _ in masked]), added)


def _allow_(scores: torch.Tensor, wanted: Sequence[_Row]) -> None:
    """Exclude all but the allowed tokens."""
    limited = [(i, row.rules.allowed) for i, row in enumerate(wanted) if row.draw.sampling.allowed_tokens is not None]
    if limited:
        at = _flat(limited, scores)
        kept = scores.view(-1).index_select(0, at)
        scores.index_fill_(0, torch.tensor([i for i, _ in limited]), -torch.inf)
        scores.view(-1).scatter_(0, at, kept)


def _exclude_(scores: torch.Tensor, wanted: Sequence[_Row]) -> None:
    """Exclude tokens that would end one of the bad words, and those that are banned for now."""
    excluded = [(i, row.rules.bad) for i, row in enumerate(wanted) if len(row.rules.bad)]
    for i, row in enumerate(wanted):
        if tokens := {*row.draw.banned, *_bad_ends(row)}:
            excluded.append((i, _known(tokens, scores.shape[1])))
    if excluded:
        scores.view(-1).scatter_(0, _flat(excluded, scores), -torch.inf)


def _bad_ends(row: _Row) -> list[int]:
    """Last tokens of the longer bad words whose other tokens are what stands last, be it prompt or output.

    One look for each length, however many words there are: every step does this for every row.
    """
    rules = row.rules
    if not rules.tails:
        return []
    past, longest = _past(row.draw), rules.tails[-1]
    tail = (*past.prompt[-longest:], *past.output[-longest:])
    return [token for length in rules.tails for token in rules.ends.get(tail[-length:], ())]


def _bias_(scores: torch.Tensor, wanted: Sequence[_Row]) -> None:
    biased = [(i, row.rules) for i, row in enumerate(wanted) if len(row.rules.biased)]
    if biased:
        at = _flat([(i, rules.biased) for i, rules in biased], scores)
        scores.view(-1).index_add_(0, at, torch.from_numpy(np.concatenate([rules.bias for _, rules in biased])))


def _past(draw: Draw) -> Past:
    if draw.past is None:
        raise ValueError(f"the draw of sequence {draw.sequence} needs the tokens before it")
    return draw.past


def _known(tokens: Iterable[int], vocabulary: int) -> Ids:
    """Token ids as an array, those left out that the model does not have: they would be another row's."""
    return np.array([token for token in tokens if token < vocabulary], dtype=np.int64)


def _flat(tokens: Sequence[tuple[int, Ids]], scores: torch.Tensor) -> torch.Tensor:
    """Indices into scores [E, V] laid flat of (row, its tokens)."""
    width = scores.shape[1]
    return torch.from_numpy(np.concatenate([row * width + ids for row, ids in tokens]))

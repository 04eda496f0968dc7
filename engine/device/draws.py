"""A step's draws as arrays for the device, packed in numpy before the logits are computed.

The arrays are part of whatever copy the step makes anyway (`DeviceSampler.launch` takes them back as tensors under the
same names, and only the beginning of one that is longer). Each must begin at a multiple of 16 bytes, so that a kernel
is compiled for one alignment only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.batch import Draw
from engine.kernels.draw_table import DRAW
from engine.kernels.logits_edit import CHANGE
from engine.sampling.draw import greedy
from engine.sampling.rules import Change, Rules, edited, fitted
from engine.sampling.tally import Ids, Kept

Array = npt.NDArray[Any]
_Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """A step's draws as the device needs them."""

    draws: tuple[Draw, ...]
    """The draws, in order."""
    arrays: Mapping[str, Array]
    """By name; `draws` always, the others only if they are needed:

        draws      int64 [M, 8]  lines of DRAW, one per draw; a line whose `same` is -1 draws nothing
        asked      int64 [A, 2]  (draw, row) of the draws whose log probabilities are asked for
        likeliest  int64 [U, 2]  (row, its first line in `asked`) of the rows whose likeliest tokens are asked for
        changes, masks, excluded, biased, bias, tallied, times: as logits_edit has them
    """
    cuts: bool = False
    """Whether min-p, top-k or top-p exclude tokens in any draw."""
    asked: tuple[int, ...] = ()
    """The indices of the draws whose log probabilities are asked for."""
    likeliest: Mapping[int, int] = field(default_factory=dict)
    """By row of logits, its line in the array `likeliest`."""
    rows: tuple[int, ...] = ()
    """Per draw, its row of logits."""
    most: int = 0
    """The most likeliest tokens that any draw asks for."""

    @property
    def plain(self) -> bool:
        """Whether the draws depend on their rows' scores as they are, and nothing else is asked for."""
        return not self.cuts and not self.asked and "changes" not in self.arrays

    def lines(self, count: int) -> Array:
        """Return the array `draws` with `count` lines; those added draw nothing."""
        lines = np.full((count, len(DRAW.names or ())), -1, dtype=np.int64)
        lines[: len(self.draws)] = self.arrays["draws"]
        return lines


class Packer:
    """Packs the draws of steps; what it remembers from step to step only saves work."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._rules = Rules()
        self._allowed: Kept[_Bits] = Kept()  # by the tuple of ids

    def plan(self, rows: Sequence[int], draws: Sequence[Draw], masks: Mapping[int, bytes]) -> DrawPlan:
        """Begin a step: pack its draws, the i-th from row rows[i] of the logits; masks as in Batch.

        Every draw whose Sampling looks at the past must carry it, complete; raises ValueError for one without it.
        """
        self._rules.step()
        self._allowed.step()
        arrays: dict[str, Array] = {}
        sources = list(rows)
        changed = [i for i, draw in enumerate(draws) if edited(draw, masks)]
        if changed:
            changes, which = self._rules.changes(
                [rows[i] for i in changed], [draws[i] for i in changed], masks, self._vocabulary
            )
            arrays |= self._changes(changes)
            for i, line in zip(changed, which, strict=True):
                sources[i] = ~line
        lines = _lines(sources, draws)
        arrays["draws"] = _words(lines)
        asked = tuple([i for i, draw in enumerate(draws) if draw.logprobs is not None])
        most = min(max([draws[i].logprobs or 0 for i in asked], default=0), self._vocabulary)
        firsts: dict[int, int] = {}
        if asked:
            arrays["asked"] = np.array([(i, rows[i]) for i in asked], dtype=np.int64)
            for place, i in enumerate(asked):
                if draws[i].logprobs:
                    firsts.setdefault(rows[i], place)
        if firsts:
            arrays["likeliest"] = np.array(list(firsts.items()), dtype=np.int64)
        cuts = (lines["temperature"] > 0) & ((lines["min_p"] > 0) | (lines["top_k"] > 0) | (lines["top_p"] < 1))
        return DrawPlan(
            tuple(draws), arrays, bool(cuts.any()), asked, {row: i for i, row in enumerate(firsts)}, tuple(rows), most
        )

    def _changes(self, changes: Sequence[Change]) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        masks: list[_Bits] = []
        lines: list[tuple[int, int, float, float, float]] = []
        for change in changes:
            bits = self._bits(change)
            sampling = change.sampling
            penalties = sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
            lines.append((change.row, -1 if bits is None else len(masks), *penalties))
            if bits is not None:
                masks.append(bits)
        arrays["changes"] = _words(np.array(lines, dtype=CHANGE))
        if masks:
            arrays["masks"] = np.stack(masks)
        if excluded := [(i, one.excluded) for i, one in enumerate(changes) if len(one.excluded)]:
            arrays["excluded"] = self._flat(excluded)
        if biased := [(i, one) for i, one in enumerate(changes) if len(one.biased)]:
            arrays["biased"] = self._flat([(i, one.biased) for i, one in biased])
            arrays["bias"] = np.concatenate([one.bias for _, one in biased])
        if tallies := [
            (i, one.tally) for i, one in enumerate(changes) if one.tally is not None and len(one.tally.tokens)
        ]:
            arrays["tallied"] = self._flat([(i, tally.tokens) for i, tally in tallies])
            arrays["times"] = np.concatenate([tally.counts for _, tally in tallies])
        return arrays

    def _bits(self, change: Change) -> _Bits | None:
        """Return the tokens that grammar and allowed tokens both allow, one bit each; None if there are neither."""
        bits = None
        if change.mask is not None:
            bits = np.frombuffer(fitted(change.mask, self._vocabulary), dtype=np.uint8)
        if change.allowed is not None:
            allowed = self._allowed.of((change.allowed,), partial(_bits_of, change.allowed, self._vocabulary))
            bits = allowed if bits is None else bits & allowed
        return bits

    def _flat(self, tokens: Sequence[tuple[int, Ids]]) -> Ids:
        return np.concatenate([line * self._vocabulary + ids for line, ids in tokens])


def _lines(sources: Sequence[int], draws: Sequence[Draw]) -> Array:
    """Return lines of DRAW.

    Draws from the same row with the same settings (the n choices that leave prefill together) share the distribution of
    the first.
    """
    same: dict[tuple[int, float, float, int, float], int] = {}
    lines = []
    for i, (source, draw) in enumerate(zip(sources, draws, strict=True)):
        sampling = draw.sampling
        kind = (source, 0.0, 0.0, 0, 1.0)
        if not greedy(sampling):
            kind = (source, sampling.temperature, sampling.min_p, sampling.top_k, sampling.top_p)
        lines.append((kind[0], same.setdefault(kind, i), *kind[1:], draw.seed, draw.position))
    return np.array(lines, dtype=DRAW)


def _words(lines: Array) -> Array:
    """Return lines of 64-bit fields as int64 [lines, fields]."""
    return lines.view(np.int64).reshape(len(lines), -1)


def _bits_of(tokens: Ids, vocabulary: int) -> _Bits:
    there = np.zeros(vocabulary, dtype=np.bool_)
    there[tokens] = True
    return np.packbits(there, bitorder="little")

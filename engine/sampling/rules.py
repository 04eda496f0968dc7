"""Finds what draws do to their rows of logits before temperature, from settings, past and masks; does not apply it.

No torch here: both backends, the CPU's and a device's, apply the same changes. The order is vLLM's (docs.vllm.ai,
vllm.v1.sample.sampler; there the grammar's mask is applied before the sampler): grammar, allowed tokens, bad words,
stop tokens that come too early, bias, then the penalties: repetition, frequency, presence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from engine.batch import Draw, Past
from engine.messages import Sampling
from engine.sampling.tally import Ids, Kept, Tally


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of one row of logits, to be applied from top to bottom.

    Ids are ones that the model has, each once, but `excluded` may repeat some. Excluding means a logit of -inf, which
    later changes do not alter.
    """

    row: int
    """The row of the step's logits."""
    mask: bytes | None
    """As in Batch."""
    allowed: Ids | None
    """All other tokens are excluded; None allows all."""
    excluded: Ids
    biased: Ids
    bias: npt.NDArray[np.float32]
    tally: Tally | None
    """The tokens that `sampling`'s penalties look at; None if it has no penalties."""
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class _Named:
    """What a Sampling says about particular tokens, as arrays; ids that the model does not have are left out."""

    allowed: Ids | None
    biased: Ids
    bias: npt.NDArray[np.float32]
    bad: Ids  # bad words of a single token
    ends: Mapping[tuple[int, ...], list[int]]  # last tokens of the longer bad words, by the tokens before
    tails: tuple[int, ...]  # how many tokens these are, each number once, ascending

    @classmethod
    def of(cls, sampling: Sampling, vocabulary: int) -> _Named:
        bias: defaultdict[int, float] = defaultdict(float)
        for token, value in sampling.logit_bias:
            if token < vocabulary:
                bias[token] += value
        ends: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for *before, last in sampling.bad_words:
            ends[tuple(before)].append(last)
        return cls(
            None if sampling.allowed_tokens is None else _known(sampling.allowed_tokens, vocabulary),
            np.array(list(bias), dtype=np.int64),
            np.array(list(bias.values()), dtype=np.float32),
            _known(ends.pop((), ()), vocabulary),
            ends,
            tuple(sorted({len(before) for before in ends})),
        )


class Rules:
    """Finds a step's changes, and keeps what does not change from one step to the next."""

    def __init__(self) -> None:
        self._named: Kept[_Named] = Kept()  # by Sampling
        self._tallies: Kept[Tally] = Kept()  # by prompt and output

    def step(self) -> None:
        """Begin a step: forget the sequences that neither of the last two steps drew for."""
        self._named.step()
        self._tallies.step()

    def changes(
        self, rows: Sequence[int], draws: Sequence[Draw], masks: Mapping[int, bytes], vocabulary: int
    ) -> tuple[list[Change], list[int]]:
        """Return the changes for `draws`, the i-th of rows[i]; and per draw, which of the changes is its own.

        Draws with the same changes of the same row (the n choices that leave prefill together) share them. Their pasts
        are not compared: the scheduler lets only choices with the same past draw from one row. Every draw whose
        Sampling looks at the past must carry it; raises ValueError for one without it.
        """
        places: dict[tuple[int, int, frozenset[int], bytes | None], int] = {}
        changes: list[Change] = []
        which: list[int] = []
        for row, draw in zip(rows, draws, strict=True):
            mask = masks.get(draw.sequence)
            place = places.setdefault((row, id(draw.sampling), draw.banned, mask), len(changes))
            if place == len(changes):
                changes.append(self._change(row, draw, mask, vocabulary))
            which.append(place)
        return changes, which

    def _change(self, row: int, draw: Draw, mask: bytes | None, vocabulary: int) -> Change:
        sampling = draw.sampling
        named = self._named.of((sampling,), partial(_Named.of, sampling, vocabulary))
        now = {*draw.banned, *_bad_ends(draw, named)}
        excluded = np.concatenate((named.bad, _known(now, vocabulary))) if now else named.bad
        tally = self._tally(draw) if _penalized(sampling) else None
        return Change(row, mask, named.allowed, excluded, named.biased, named.bias, tally, sampling)

    def _tally(self, draw: Draw) -> Tally:
        past = _past(draw)
        # Only repetition looks at the prompt.
        prompt = past.prompt if draw.sampling.repetition_penalty != 1 else ()
        tally = self._tallies.of((prompt, past.output), partial(Tally, prompt))
        tally.take(past.output)
        return tally


def edited(draw: Draw, masks: Mapping[int, bytes]) -> bool:
    """Whether a draw changes its row before temperature."""
    return bool(draw.banned) or draw.sequence in masks or draw.sampling.edits


def fitted(mask: bytes, vocabulary: int) -> bytes:
    """Return a mask in as many bytes as the vocabulary needs; tokens that a shorter mask does not cover are not
    allowed.

    A tokenizer may know fewer tokens than the model.
    """
    width = -(-vocabulary // 8)
    return mask[:width].ljust(width, b"\0")


def _penalized(sampling: Sampling) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1)


def _bad_ends(draw: Draw, named: _Named) -> list[int]:
    """Return the last tokens of the longer bad words whose other tokens are the most recent ones, of prompt or output.

    One lookup for each length, however many words there are, because every step does this for every row.
    """
    if not named.tails:
        return []
    past, longest = _past(draw), named.tails[-1]
    tail = (*past.prompt[-longest:], *past.output[-longest:])
    return [token for length in named.tails for token in named.ends.get(tail[-length:], ())]


def _past(draw: Draw) -> Past:
    if draw.past is None:
        raise ValueError(f"the draw of sequence {draw.sequence} needs the tokens before it")
    return draw.past


def _known(tokens: Iterable[int], vocabulary: int) -> Ids:
    """Return token ids as an array, without those that the model does not have: in flat indices they would be in
    another row.
    """
    return np.array([token for token in tokens if token < vocabulary], dtype=np.int64)

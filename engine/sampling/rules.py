"""What draws want done to their rows of logits before temperature: found from settings, past and masks, not yet done.

No torch here: both backends, the CPU's and a device's, carry out the same changes. In vLLM's order
(docs.vllm.ai, vllm.v1.sample.sampler; there the grammar's mask goes ahead of the sampler): grammar, allowed tokens,
bad words, stop tokens that come too early, bias, then the penalties: repetition, frequency, presence.
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
    """What one row of logits becomes, top to bottom. Ids are those the model has, each once; excluded ones may repeat.

    row: of the step's logits. mask: as in Batch. allowed: all else is excluded; None allows all. tally: tokens that
    `sampling`'s penalties look at; None where it has none. Exclusion is a logit of -inf, which the later ones leave.
    """

    row: int
    mask: bytes | None
    allowed: Ids | None
    excluded: Ids
    biased: Ids
    bias: npt.NDArray[np.float32]
    tally: Tally | None
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class _Named:
    """What of a Sampling names tokens, as arrays; ids that the model does not have are left out."""

    allowed: Ids | None
    biased: Ids
    bias: npt.NDArray[np.float32]
    bad: Ids  # bad words of a single token
    ends: Mapping[tuple[int, ...], list[int]]  # last tokens of the longer ones, by the tokens before
    tails: tuple[int, ...]  # how many tokens these are, each number once, rising

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
        """Begin a step: forget the sequences that the last two did not draw for."""
        self._named.step()
        self._tallies.step()

    def changes(
        self, rows: Sequence[int], draws: Sequence[Draw], masks: Mapping[int, bytes], vocabulary: int
    ) -> tuple[list[Change], list[int]]:
        """What `draws` want of their rows, the i-th of rows[i]; and per draw, which of the changes is its own.

        Draws that share a row and want the same of it (the n choices that leave prefill together) share the change.
        Every draw whose Sampling looks at the past brings it; raises ValueError for one that does not.
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
    """Whether anything is to be done to a draw's row before temperature."""
    return bool(draw.banned) or draw.sequence in masks or draw.sampling.edits


def fitted(mask: bytes, vocabulary: int) -> bytes:
    """A mask in as many bytes as the vocabulary needs; what a shorter one does not speak of is not let through.

    A tokenizer may know fewer tokens than the model.
    """
    width = -(-vocabulary // 8)
    return mask[:width].ljust(width, b"\0")


def _penalized(sampling: Sampling) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1)


def _bad_ends(draw: Draw, named: _Named) -> list[int]:
    """Last tokens of the longer bad words whose other tokens are what stands last, be it prompt or output.

    One look for each length, however many words there are: every step does this for every row.
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
    """Token ids as an array, those left out that the model does not have: they would be another row's."""
    return np.array([token for token in tokens if token < vocabulary], dtype=np.int64)

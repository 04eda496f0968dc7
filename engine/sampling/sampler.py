"""A step's draws, from logits to the output: tokens, their log probabilities, and the sequences that could not draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from engine.batch import Draw, StepOutput, Stuck
from engine.sampling.draw import Exponentials, FromWhole, draw, whole
from engine.sampling.edits import Edits
from engine.sampling.logprobs import logprobs
from engine.sampling.philox import exponentials
from engine.sampling.rules import edited


class Sampler:
    """Draws, one step at a time.

    What it remembers only saves work: a draw is a function of its row, its settings, its past, its mask and (seed,
    position).

    noise: the function that gives the random numbers. from_whole: a faster way to draw from logits without edits and
    cuts; None if there is none.
    """

    def __init__(self, noise: Exponentials = exponentials, from_whole: FromWhole | None = None) -> None:
        self._edits = Edits()
        self._noise = noise
        self._from_whole = from_whole

    def sample(
        self, logits: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw], masks: Mapping[int, bytes]
    ) -> StepOutput:
        """Draw one token for each of `draws`, the i-th from logits[rows[i]], in that order; masks as in Batch.

        logits [N, V], any float dtype, are not changed. A sequence for which nothing can be drawn gets no token and is
        listed in `stuck`.
        """
        self._edits.step()
        changed = [i for i, one in enumerate(draws) if edited(one, masks)]
        plain = sorted(set(range(len(draws))).difference(changed))
        tokens: dict[int, int] = {}  # by index in `draws`, like all of these
        stuck: dict[int, Stuck] = {}

        def take(scores: torch.Tensor, places: dict[int, int]) -> None:
            hopeless = _hopeless(scores)
            stuck.update({i: hopeless[row] for i, row in places.items() if row in hopeless})
            able = [i for i in places if i not in stuck]
            if able:
                drawn = draw(scores, [places[i] for i in able], [draws[i] for i in able], self._noise)
                tokens.update(zip(able, drawn, strict=True))

        quick = [i for i in plain if whole(draws[i].sampling)] if self._from_whole else []
        if self._from_whole and quick:
            drawn = self._from_whole(logits, [rows[i] for i in quick], [draws[i] for i in quick])
            if drawn is not None:
                for i, token in zip(quick, drawn, strict=True):
                    if isinstance(token, int):
                        tokens[i] = token
                    else:
                        stuck[i] = token
                plain = sorted(set(plain).difference(quick))
        if plain:
            take(logits, {i: rows[i] for i in plain})
        if changed:
            there = self._edits.apply(logits, [rows[i] for i in changed], [draws[i] for i in changed], masks)
            take(there.scores, dict(zip(changed, there.rows, strict=True)))
        given = sorted(tokens)
        asked = [i for i in given if draws[i].logprobs is not None]
        scored = logprobs(logits, [(rows[i], tokens[i], draws[i].logprobs or 0) for i in asked]) if asked else []
        return StepOutput(
            tuple([(draws[i].sequence, tokens[i]) for i in given]),
            {draws[i].sequence: one for i, one in zip(asked, scored, strict=True)},
            stuck={draws[i].sequence: stuck[i] for i in sorted(stuck)},
        )


def _hopeless(scores: torch.Tensor) -> dict[int, Stuck]:
    """Return the rows of scores [N, V] that nothing can be drawn from: everything is excluded, or a value is NaN or
    infinite.
    """
    best = scores.amax(-1)
    if best.isfinite().all():
        return {}
    return {
        row: "rules" if value == -math.inf else "logits"
        for row, value in enumerate(best.tolist())
        if not math.isfinite(value)
    }

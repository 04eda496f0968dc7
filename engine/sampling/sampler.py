"""A step's draws, from logits to the output: tokens, their log probabilities, and the sequences that could not draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from engine.batch import Draw, StepOutput, Stuck
from engine.sampling.draw import Exponentials, FromScores, draw
from engine.sampling.edits import Edits
from engine.sampling.logprobs import Score, logprobs
from engine.sampling.philox import exponentials
from engine.sampling.rules import edited


class Sampler:
    """Draws, one step at a time.

    What it remembers only saves work: a draw is a function of its row, its settings, its past, its mask and (seed,
    position).

    noise: the function that gives the random numbers. from_scores: a faster way to draw; None if there is none. score:
    the function that finds log probabilities.
    """

    def __init__(
        self,
        noise: Exponentials = exponentials,
        from_scores: FromScores | None = None,
        score: Score = logprobs,
    ) -> None:
        self._edits = Edits()
        self._noise = noise
        self._from_scores = from_scores
        self.score = score

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
        told: dict[int, int | Stuck] = {}  # by index in `draws`
        if plain:
            drawn = self._draw(logits, [rows[i] for i in plain], [draws[i] for i in plain])
            told.update(zip(plain, drawn, strict=True))
        if changed:
            there = self._edits.apply(logits, [rows[i] for i in changed], [draws[i] for i in changed], masks)
            drawn = self._draw(there.scores, there.rows, [draws[i] for i in changed])
            told.update(zip(changed, drawn, strict=True))
        in_order = sorted(told.items())
        tokens = {i: token for i, token in in_order if isinstance(token, int)}
        asked = [i for i in tokens if draws[i].logprobs is not None]
        scored = self.score(logits, [(rows[i], tokens[i], draws[i].logprobs or 0) for i in asked]) if asked else []
        return StepOutput(
            tuple([(draws[i].sequence, token) for i, token in tokens.items()]),
            {draws[i].sequence: one for i, one in zip(asked, scored, strict=True)},
            stuck={draws[i].sequence: why for i, why in in_order if not isinstance(why, int)},
        )

    def _draw(self, scores: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw]) -> list[int | Stuck]:
        """Return for each draw, the i-th from scores[rows[i]], its token, or why there is none."""
        if self._from_scores is not None and (drawn := self._from_scores(scores, rows, draws)) is not None:
            return drawn
        hopeless = _hopeless(scores)
        able = [i for i, row in enumerate(rows) if row not in hopeless]
        tokens = draw(scores, [rows[i] for i in able], [draws[i] for i in able], self._noise)
        given = dict(zip(able, tokens, strict=True))
        return [given[i] if i in given else hopeless[row] for i, row in enumerate(rows)]


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

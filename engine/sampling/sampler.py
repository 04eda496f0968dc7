"""A step's draws, from logits to what goes back: tokens, their log probabilities, and who found no token to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from engine.batch import Draw, StepOutput
from engine.sampling.draw import draw
from engine.sampling.edits import Edits, edited
from engine.sampling.logprobs import logprobs


class Sampler:
    """Draws, one step at a time. What it remembers saves work only: a draw is a function of its row, its settings,
    its past, its mask and (seed, position)."""

    def __init__(self) -> None:
        self._edits = Edits()

    def sample(
        self, logits: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw], masks: Mapping[int, bytes]
    ) -> StepOutput:
        """Draw one token for each of `draws`, the i-th from logits[rows[i]], in that order; masks as in Batch.

        logits [N, V], any float dtype, are not changed. A sequence whose edits leave no token at all gets none and
        is named in `stuck`.
        """
        self._edits.step()
        changed = [i for i, one in enumerate(draws) if edited(one, masks)]
        plain = sorted(set(range(len(draws))).difference(changed))
        tokens: dict[int, int] = {}  # by place in `draws`
        if plain:
            drawn = draw(logits, [rows[i] for i in plain], [draws[i] for i in plain])
            tokens.update(zip(plain, drawn, strict=True))
        if changed:
            there = self._edits.apply(logits, [rows[i] for i in changed], [draws[i] for i in changed], masks)
            able = {i: row for i, row in zip(changed, there.rows, strict=True) if row not in there.empty}
            drawn = draw(there.scores, [*able.values()], [draws[i] for i in able]) if able else []
            tokens.update(zip(able, drawn, strict=True))
        given = sorted(tokens)
        asked = [i for i in given if draws[i].logprobs is not None]
        told = logprobs(logits, [(rows[i], tokens[i], draws[i].logprobs or 0) for i in asked]) if asked else []
        return StepOutput(
            tuple([(draws[i].sequence, tokens[i]) for i in given]),
            {draws[i].sequence: one for i, one in zip(asked, told, strict=True)},
            stuck=tuple([one.sequence for i, one in enumerate(draws) if i not in tokens]),
        )

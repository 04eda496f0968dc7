"""Random mixtures of draws: settings, pasts, bans and masks, over a few rows that some draws share."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from engine.batch import Draw, Past
from engine.messages import Sampling

Mixture = tuple[list[int], list[Draw], dict[int, bytes], list[int]]
"""Each draw's row, the draws, masks by sequence, and another order of the draws."""

VOCABULARY = 83
ROWS = 5
_TOKENS = st.integers(0, VOCABULARY - 1)
_PENALTY = st.sampled_from([0.0, 0.0, 0.6, -0.4])


@st.composite
def _samplings(draw: st.DrawFn) -> Sampling:
    return Sampling(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 1.0, 2.5])),
        top_k=draw(st.sampled_from([0, 0, 1, 5, 40, 200])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.3])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.1])),
        presence_penalty=draw(_PENALTY),
        frequency_penalty=draw(_PENALTY),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.4])),
        logit_bias=tuple(draw(st.lists(st.tuples(_TOKENS, st.sampled_from([-100.0, -1.5, 4.0])), max_size=3))),
        bad_words=tuple(draw(st.lists(st.lists(_TOKENS, min_size=1, max_size=2).map(tuple), max_size=2))),
        allowed_tokens=draw(st.none() | st.lists(_TOKENS, max_size=6).map(tuple)),
    )


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Draw rows, draws over them, masks, and another order. Draws of one row have the same past, as siblings do."""
    kinds = draw(st.lists(_samplings(), min_size=1, max_size=4))
    pasts = [Past(tuple(draw(st.lists(_TOKENS, max_size=4))), draw(st.lists(_TOKENS, max_size=4))) for _ in range(ROWS)]
    rows = draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=9))
    draws = [
        Draw(
            sequence=i,
            seed=draw(st.integers(-(2**63), 2**63 - 1)),
            position=draw(st.integers(1, 2**40)),
            sampling=draw(st.sampled_from(kinds)),
            past=replace(pasts[row], output=list(pasts[row].output)),
            banned=draw(st.frozensets(_TOKENS, max_size=2)),
            logprobs=draw(st.sampled_from([None, None, 0, 1, 5, 20])),
        )
        for i, row in enumerate(rows)
    ]
    masks = draw(st.dictionaries(st.integers(0, len(rows) - 1), st.binary(min_size=9, max_size=12), max_size=3))
    return rows, draws, masks, draw(st.permutations(range(len(rows))))

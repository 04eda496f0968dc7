"""transformers' continuous batching, a peer of its own: paged, and a prompt's blocks are forked for its choices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from transformers.generation.configuration_utils import ContinuousBatchingConfig

from bench.engine.cells import Answer, Asked
from bench.engine.inside.talk import answer_lines
from bench.engine.inside.transformers import load_model, packages, settings

_BLOCKS = 320  # of 256 tokens
_BATCH_TOKENS = 2048


def load() -> tuple[Mapping[str, str], Callable[[Asked], Answer]]:
    """The model and how it is asked."""
    model = load_model()
    return packages(), lambda asked: answer(model, asked)


def answer(model: Any, asked: Asked) -> Answer:
    """All prompts, whole: it does not say when a first token was there. The manager is kept for the next."""
    began = time.perf_counter()
    answers = model.generate_batch(
        [list(prompt) for prompt in asked.prompts],
        generation_config=settings(asked, asked.n),
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=_BLOCKS, max_batch_tokens=_BATCH_TOKENS),
        persistent_manager=True,
        progress_bar=False,
    )
    seconds = time.perf_counter() - began
    if errors := [one.error for one in answers.values() if one.error]:
        raise RuntimeError(errors[0])
    drawn = [len(one.generated_tokens) for one in answers.values()]
    # Some versions wait for all n and give back the first: it stands for the others, which ran as long.
    return Answer(seconds, None, None, sum(drawn) * (asked.n if len(drawn) == len(asked.prompts) else 1))


if __name__ == "__main__":
    answer_lines(load)

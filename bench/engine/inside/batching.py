"""transformers' continuous batching, as a peer of its own: it is paged, and forks a prompt's blocks for its choices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from transformers.generation.configuration_utils import ContinuousBatchingConfig

from bench.engine.cells import Answer, Asked
from bench.engine.inside.talk import answer_lines
from bench.engine.inside.transformers import load_model, packages, settings

_BLOCKS = 128  # of 256 tokens each
_BATCH_TOKENS = 2048


def load() -> tuple[Mapping[str, str], Callable[[Asked], Answer]]:
    """Load the model; return its packages' versions and a function that answers."""
    model = load_model()
    return packages(), lambda asked: answer(model, asked)


def answer(model: Any, asked: Asked) -> Answer:
    """Answer all prompts at once, with a manager that has already answered others: it is kept as long as n stays."""
    if getattr(model, "_made_for", asked.n) != asked.n:
        model.destroy_cached_continuous_batching_manager()
    model._made_for = asked.n
    others = tuple(prompt[::-1] for prompt in asked.prompts)
    _generate(model, replace(asked, prompts=others, new=2))
    began = time.perf_counter()
    answers = _generate(model, asked)
    seconds = time.perf_counter() - began
    if errors := [one.error for one in answers if one.error]:
        raise RuntimeError(errors[0])
    firsts = [one.timestamps[0] - began for one in answers]
    return Answer(seconds, min(firsts), max(firsts), sum(len(one.generated_tokens) for one in answers))


def _generate(model: Any, asked: Asked) -> list[Any]:
    answers = model.generate_batch(
        [list(prompt) for prompt in asked.prompts],
        generation_config=settings(asked, asked.n),
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=_BLOCKS, max_batch_tokens=_BATCH_TOKENS),
        record_timestamps=True,
        persistent_manager=True,
        progress_bar=False,
    )
    if not answers:
        raise RuntimeError("it gave nothing")
    return list(answers.values())


if __name__ == "__main__":
    answer_lines(load)

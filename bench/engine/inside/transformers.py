"""transformers' generate: all choices are rows of one batch, and the prompt is computed for each row."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from bench.engine.cells import Answer, Asked
from bench.engine.inside.talk import answer_lines


class FirstStep(BaseStreamer):  # type: ignore[misc] # transformers is not typed
    """It notes when the first tokens of all rows were drawn: its first `put` gets the prompt, its second the tokens."""

    def __init__(self) -> None:
        self.calls = 0
        self.at = 0.0

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt, or one token of each row."""
        self.calls += 1
        if self.calls == 2:
            self.at = time.perf_counter()

    def end(self) -> None:
        """Do nothing: the end of the answer is timed elsewhere."""


def load_model() -> Any:
    """Load the model that the first argument names, in the dtype of the third."""
    model, threads, dtype = sys.argv[1:]
    torch.set_num_threads(int(threads))
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    loaded.requires_grad_(False)
    return loaded.eval()


def packages() -> dict[str, str]:
    """Return the versions of the packages that matter for the speed."""
    return {name: version(name) for name in ("transformers", "torch")}


def settings(asked: Asked, n: int) -> Any:
    """Return the generation settings; only its length ends a choice. n: choices per prompt."""
    return GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=n,
        max_new_tokens=asked.new,
        min_new_tokens=asked.new,
        eos_token_id=-1,
        pad_token_id=0,
    )


def load() -> tuple[Mapping[str, str], Callable[[Asked], Answer]]:
    """Load the model; return its packages' versions and a function that answers."""
    model = load_model()
    return packages(), lambda asked: answer(model, asked)


def answer(model: Any, asked: Asked) -> Answer:
    """Answer all prompts as one batch."""
    ids, step = torch.tensor(asked.prompts), FirstStep()
    began = time.perf_counter()
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), generation_config=settings(asked, asked.n), streamer=step
    )
    seconds = time.perf_counter() - began
    return Answer(seconds, step.at - began, step.at - began, out.shape[0] * (out.shape[1] - ids.shape[1]))


if __name__ == "__main__":
    answer_lines(load)

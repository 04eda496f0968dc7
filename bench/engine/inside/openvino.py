"""OpenVINO GenAI's LLMPipeline, from a GGUF file; its scheduler has no prefix cache across requests."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import openvino
import openvino_genai

from bench.engine.cells import Answer, Asked
from bench.engine.inside.talk import answer_lines

_CACHE_GB = 1
_BATCH_TOKENS = 4096


def load() -> tuple[Mapping[str, str], Callable[[Asked], Answer]]:
    """Load the pipeline; return its packages' versions and a function that answers."""
    model, threads, _ = sys.argv[1:]
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = _CACHE_GB
    scheduler.max_num_batched_tokens = _BATCH_TOKENS
    scheduler.enable_prefix_caching = False
    pipeline = openvino_genai.LLMPipeline(model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=int(threads))
    packages = {name: version(name) for name in ("openvino", "openvino-genai")}
    return packages, lambda asked: answer(pipeline, asked)


def answer(pipeline: Any, asked: Asked) -> Answer:
    """Answer all prompts at once. OpenVINO reports the time to the first token for a single request only."""
    settings = openvino_genai.GenerationConfig()
    settings.max_new_tokens = settings.min_new_tokens = asked.new
    settings.ignore_eos = settings.do_sample = True
    settings.temperature = settings.top_p = 1.0
    settings.num_return_sequences = asked.n
    ids = np.array(asked.prompts, dtype=np.int64)
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
    began = time.perf_counter()
    result = pipeline.generate(inputs, settings)
    seconds = time.perf_counter() - began
    first = result.perf_metrics.get_ttft().mean / 1000 if len(asked.prompts) == 1 else None
    return Answer(seconds, first, None, sum(map(len, result.tokens)))


if __name__ == "__main__":
    answer_lines(load)

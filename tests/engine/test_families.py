"""Every family of models as the engine serves it, against transformers: one walk through all that can happen.

A prompt is computed in chunks beside other work, forked, decoded, preempted and resumed in a pool that is too
small. All log probabilities of it, the prompt's included, have to be those of one pass of transformers' own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.core import Core
from engine.cpu_runner import CpuRunner
from engine.messages import Add, Choice, Logprobs, Sampling
from tests.fakes.tiny_models import SIZES, reference_logits, save

TOLERANCE = 1e-4  # of a log probability in float32
SLIDING, FULL = "sliding_attention", "full_attention"
EXPERTS = {"num_experts_per_tok": 2, "head_dim": 8}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "num_key_value_heads": 6,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}

# A checkpoint that also sees pictures, which the engine does not ask it to.
SEEING = {
    "text_config": SIZES | {"sliding_window": 8, "head_dim": 8, "layer_types": [SLIDING, SLIDING, FULL]},
    "vision_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    | {"image_size": 28, "patch_size": 14},
    "mm_tokens_per_image": 4,
    "image_token_index": 96,
    "boi_token_index": 95,
    "eoi_token_index": 94,
}

FAMILIES: list[tuple[str, dict[str, Any]]] = [
    # The engine's own decoder.
    ("llama", {}),
    ("mistral", {"sliding_window": 8}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("qwen3", {"head_dim": 16}),
    ("smollm3", {"num_hidden_layers": 5}),
    # transformers' classes on the engine's cache.
    ("llama", {"rope_parameters": YARN}),
    ("gemma2", {"sliding_window": 8, "head_dim": 8, "query_pre_attn_scalar": 24}),
    ("gemma3_text", {"sliding_window": 8, "head_dim": 8, "layer_types": [SLIDING, SLIDING, FULL]}),
    ("gemma3", SEEING),
    ("phi3", {"sliding_window": 8}),
    ("phi", {}),
    ("mixtral", {"num_local_experts": 4, "sliding_window": None, **EXPERTS}),
    ("qwen3_moe", {"num_experts": 4, "moe_intermediate_size": 32, **EXPERTS}),
    ("olmoe", {"num_experts": 4, **EXPERTS}),
    ("gpt_oss", {"num_local_experts": 4, "sliding_window": 8, "num_hidden_layers": 2, **EXPERTS}),
    (
        "deepseek_v3",
        {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32, "num_key_value_heads": 6}
        | LATENT,
    ),
    ("gpt2", {}),
    ("gpt_neox", {}),
    ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 48}),
    ("olmo2", {}),
    ("granite", {"logits_scaling": 2.0, "attention_multiplier": 0.2, "embedding_multiplier": 3.0}),
    ("cohere2", {"sliding_window": 8, "head_dim": 8, "logit_scale": 1.0}),
    ("starcoder2", {"sliding_window": 8}),
    ("glm4", {"head_dim": 8}),
    (
        "gemma4_text",
        {
            "sliding_window": 8,
            "head_dim": 8,
            "global_head_dim": 16,
            "layer_types": [SLIDING, FULL, FULL],
            "vocab_size_per_layer_input": 97,
            "hidden_size_per_layer_input": 8,
        },
    ),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("kind", "settings"), FAMILIES, ids=lambda value: value if isinstance(value, str) else "")
def test_log_probabilities_are_those_of_transformers(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    model = save(tmp_path, kind, **settings)
    config = EngineConfig(
        str(tmp_path), dtype="float32", block_size=4, num_blocks=20, max_sequences=4, max_batch_tokens=12, share_gate=4
    )
    core = Core(config, CpuRunner.load(config))
    chance = random.Random(6)
    long, short = (tuple(chance.randrange(3, 97) for _ in range(length)) for length in (30, 9))
    choices = [Choice(seed, 16, Sampling()) for seed in range(3)]
    core.add(Add(1, long, tuple(choices), frozenset(), logprobs=3, prompt_logprobs=2))
    core.add(Add(2, short, tuple(choices[:1]), frozenset(), logprobs=1))
    drawn: dict[tuple[int, int], list[tuple[int, Logprobs]]] = {}
    prompts: dict[int, tuple[Logprobs | None, ...] | None] = {}
    while core.has_work:
        done = core.step()
        assert not done.failed
        prompts |= {started.group: started.prompt_logprobs for started in done.started}
        for token in done.tokens:
            assert token.logprobs is not None
            drawn.setdefault((token.group, token.choice), []).append((token.token, token.logprobs))
    stats = core.stats()
    assert stats.preemptions > 0
    assert stats.block_copies > 0
    assert stats.blocks_used == 0

    for (group, _), answer in drawn.items():
        prompt = long if group == 1 else short
        tokens = [*prompt, *(token for token, _ in answer)]
        expected = reference_logits(model, tokens).log_softmax(-1)
        assert len(answer) == 16
        _compare([told for _, told in answer], tokens[len(prompt) :], expected[len(prompt) - 1 : -1])
    scored = prompts[1]
    assert scored is not None
    assert scored[0] is None
    _compare([told for told in scored if told], list(long[1:]), reference_logits(model, list(long)).log_softmax(-1))
    assert len({tuple(token for token, _ in answer) for answer in drawn.values()}) == 4


def _compare(told: list[Logprobs], tokens: list[int], expected: torch.Tensor) -> None:
    for each, token, row in zip(told, tokens, expected[: len(tokens)], strict=True):
        assert abs(each.own - float(row[token])) < TOLERANCE
        for likely, value in each.top:
            assert abs(value - float(row[likely])) < TOLERANCE
        best = row.topk(len(each.top)).values if each.top else row[:0]
        torch.testing.assert_close(torch.tensor([value for _, value in each.top]), best, atol=TOLERANCE, rtol=0)

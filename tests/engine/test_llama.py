"""The decoder against transformers on small random models of every family, in float32."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from engine.batch import Batch, Chunk, Draw, Row
from engine.kv_spans import plan_kv_spans
from engine.messages import Sampling
from tests.fakes.tiny_models import BLOCK, LLAMA3, Scorer, reference_logits, save

DRAW = Draw(0, 0, 0, Sampling(temperature=0.0))
TOKENS = random.Random(0).choices(range(97), k=90)
TABLE = tuple(random.Random(1).sample(range(64), 30))

SLIDING = "sliding_attention"

FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 6}),
    ("llama", {"num_key_value_heads": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"head_dim": 16, "rms_norm_eps": 1e-3}),
    ("llama", {"rope_parameters": LLAMA3}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    ("mistral", {"sliding_window": None}),
    ("qwen2", {}),
    ("qwen3", {"head_dim": 16}),
    ("mistral", {"sliding_window": 8}),
    ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}),
    ("qwen2", {"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 1}),
    ("qwen3", {"sliding_window": 70, "use_sliding_window": True, "layer_types": [SLIDING, "full_attention", SLIDING]}),
    ("smollm3", {"num_hidden_layers": 5}),
    ("smollm3", {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 8}),
]


@pytest.mark.parametrize(("kind", "settings"), FAMILIES, ids=str)
def test_logits_equal_transformers(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    model = save(tmp_path, kind, **settings)
    expected = reference_logits(model, TOKENS)
    scorer = Scorer(tmp_path)
    torch.testing.assert_close(scorer.prompt(TOKENS, TABLE), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("differs", [True, False])
def test_a_head_beside_the_embedding_that_it_is_tied_to(tmp_path: Path, differs: bool) -> None:
    """transformers uses it where it says something else; some checkpoints hold the same numbers twice."""
    save(tmp_path, "llama", tie_word_embeddings=True)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = torch.randn_like(embedding) if differs else embedding.clone()
    save_file(tensors, file, metadata={"format": "pt"})
    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert torch.equal(model.lm_head.weight, embedding) is not differs
    expected = reference_logits(model, TOKENS)
    torch.testing.assert_close(Scorer(tmp_path).prompt(TOKENS, TABLE), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}])
def test_decoding_equals_prefill(tmp_path: Path, settings: dict[str, Any]) -> None:
    # A prompt in two chunks, then token by token: every position's logits are those of one pass.
    model = save(tmp_path, "qwen3", **settings)
    expected = reference_logits(model, TOKENS)
    scorer = Scorer(tmp_path)
    parts = [scorer.prompt(TOKENS[:21], TABLE), scorer.prompt(TOKENS[21:50], TABLE, start=21)]
    for position in range(50, 90):
        row = Row(0, TOKENS[position], position, TABLE, DRAW)
        parts.append(scorer.logits(Batch(rows=(row,), kv_spans=plan_kv_spans([row], BLOCK))))
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-4, atol=1e-4)


def test_a_fork_equals_private_sequences(tmp_path: Path) -> None:
    # Three continuations of one prompt of 22 tokens: five shared blocks, the sixth copied for two of them.
    model = save(tmp_path)
    scorer = Scorer(tmp_path)
    endings = [[(7 * i + 3 * j) % 97 for j in range(12)] for i in range(3)]
    scorer.prompt(TOKENS[:22], tuple(range(6)))
    tables = [(*range(5), first, first + 1, first + 2, first + 3) for first in (5, 20, 24)]
    copies = ((5, 20), (5, 24))
    for step in range(12):
        rows = [Row(i, endings[i][step], 22 + step, tables[i], DRAW) for i in range(3)]
        if step == 0:
            scorer.cache.copy_blocks(copies)
        # A fourth prompt runs beside them.
        beside = Chunk(9, tuple(TOKENS[:9]), 0, (30, 31, 32))
        logits = scorer.logits(Batch(chunks=(beside,), rows=tuple(rows), kv_spans=plan_kv_spans(rows, BLOCK)))[9:]
        for i in range(3):
            expected = reference_logits(model, TOKENS[:22] + endings[i][: step + 1])[-1]
            torch.testing.assert_close(logits[i], expected, rtol=1e-4, atol=1e-4)


def test_bfloat16_is_near(tmp_path: Path) -> None:
    model = save(tmp_path)
    expected = reference_logits(model, TOKENS)
    logits = Scorer(tmp_path, dtype=torch.bfloat16).prompt(TOKENS, TABLE)
    assert (logits - expected).std() < 0.05 * expected.std()


def test_rows_of_a_product_do_not_depend_on_each_other(tmp_path: Path) -> None:
    save(tmp_path)
    scorer = Scorer(tmp_path)
    x = torch.randn(40, 48)
    with torch.inference_mode():
        together = scorer.decoder.logits(x)
        for rows in (1, 2, 7, 33):
            torch.testing.assert_close(scorer.decoder.logits(x[:rows]), together[:rows], rtol=1e-6, atol=1e-6)

"""`nproxy probe` reports the real properties of `transformers serve`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nproxy.config import load
from tests.real.processes import Server

pytestmark = [pytest.mark.model, pytest.mark.timeout(330)]


def probe(server: Server, model: Path, form: str) -> str:
    argv = [sys.executable, "-m", "nproxy", "probe", server.v1, "--model", str(model), form]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout


def test_transformers_serve_gives_the_true_table(transformers_server: Server, smollm2_folder: Path) -> None:
    told = json.loads(probe(transformers_server, smollm2_folder, "--json"))
    verdicts = {
        section: {name: one["verdict"] for name, one in facts.items() if one["verdict"] != "unknown"}
        for section, facts in told["findings"].items()
    }
    assert verdicts["server"] == {"model_list": "no", "beside": "yes", "seeds_at_once": "yes", "at_once": "yes"}
    assert verdicts["chat"] == {
        "available": "yes",
        "sampling": "no",
        "n": "no",
        "seed_accepted": "yes",
        "seed": "yes",  # when it samples
        "fresh_seed": "yes",
        "logprobs": "no",
        "usage": "yes",
        "stream": "yes",
        "stream_options": "yes",
        "stream_usage": "yes",
        "stream_usage_once": "no",
        "role_chunks": "yes",
        "finish": "yes",
        "done": "no",
        "tools": "no",
    }
    told_values = {name: one["value"] for name, one in told["findings"]["chat"].items() if one["value"] is not None}
    assert told_values == {"n": "ignored", "sampling": "generation_config"}
    legacy = {
        name: verdicts["completions"][name] for name in ("n", "prompt_lists", "token_prompts", "echo", "logprobs")
    }
    assert set(legacy.values()) == {"no"}


def test_its_entry_is_taken(transformers_server: Server, smollm2_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text(probe(transformers_server, smollm2_folder, "--yaml"))
    [upstream] = load(file, environ={}).upstreams
    assert (upstream.n, upstream.models, upstream.seed) == (
        "fanout",
        {str(smollm2_folder): str(smollm2_folder)},
        "send",
    )

"""The engine without its server needs torch, Triton, transformers and NumPy, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_all_but_the_server_runs_where_nothing_else_is_installed() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, "-m", "tests.engine.bare"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
    report = json.loads(child.stdout)
    assert {"aiohttp", "gguf", "llguidance", "nproxy", "orjson", "pydantic"} <= set(report["hidden"])
    assert not {"torch", "numpy", "safetensors", "transformers", "triton"} & set(report["hidden"])
    assert report["loaded"] == []
    assert {"engine.core", "engine.grammar", "engine.models.bridge", "engine.cpu_runner", "engine.worker"} <= set(
        report["modules"]
    )
    assert [len(tokens) for tokens in report["tokens"].values()] == [6, 6]

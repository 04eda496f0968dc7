"""The examples that need other projects' packages: LangChain, LiteLLM, the official Node client; and Node itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.real.processes import ROOT, Server
from tests.system.packages import installed
from tests.system.tools import NODE, NODE_SCRIPTS, needed

pytestmark = [pytest.mark.model, pytest.mark.timeout(330)]


def three(said: str) -> bool:
    """Whether three choices have text; an answer may have several lines."""
    return sorted(re.findall(r"^choice (\d): \S", said, re.MULTILINE)) == ["0", "1", "2"]


def run(argv: list[str], road: Server, env: Mapping[str, str] | None = None) -> str:
    whole = {**os.environ, "OPENAI_BASE_URL": road.v1, "NO_PROXY": "127.0.0.1", **(env or {})}
    done = subprocess.run(argv, cwd=ROOT, env=whole, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["langchain_n", "litellm_n"])
def test_python(name: str, road: Server) -> None:
    quiet = {
        "LANGSMITH_TRACING": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": str(installed("clients")),
    }
    said = run([sys.executable, f"examples/{name}.py"], road, quiet)
    assert three(said), said
    assert re.search(r"\d+", said.splitlines()[-1])


@pytest.mark.parametrize("name", ["openai_n", "fetch_sse"])
def test_node(name: str, road: Server, tmp_path: Path) -> None:
    """The program is copied beside the packages, because Node looks for modules from the program's folder."""
    (tmp_path / "node_modules").symlink_to(NODE_SCRIPTS / "node_modules")
    program = tmp_path / f"{name}.mjs"
    program.write_bytes((ROOT / "examples" / "node" / f"{name}.mjs").read_bytes())
    said = run([needed(NODE), str(program)], road)
    assert three(said), said

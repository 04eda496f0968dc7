"""The examples, and what the README gives to paste, do what they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.real.processes import ROOT, Server

pytestmark = pytest.mark.model


def run(server: Server, *argv: str) -> str:
    env = {**os.environ, "NPROXY_URL": server.url, "OPENAI_BASE_URL": server.v1, "COLUMNS": "160"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_curl(road: Server) -> None:
    answer = json.loads(run(road, "sh", "examples/curl.sh"))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len({choice["message"]["content"] for choice in answer["choices"]}) == 4


def test_openai_n(road: Server) -> None:
    shown = run(road, sys.executable, "examples/openai_n.py", "Name an animal.")
    assert re.findall(r"choice \d", shown) == ["choice 0", "choice 1", "choice 2", "choice 3"]
    assert len(re.findall(r"\b(?:stop|length)\b", shown)) >= 4


def readme(server: Server, language: str, holding: str) -> str:
    """The README's block of this language that holds a certain text, with its address changed to the server's."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    [block] = [block for block in blocks if holding in block]
    assert "http://127.0.0.1:8000" in block
    return block.replace("http://127.0.0.1:8000", server.url)


def test_the_readmes_curl(road: Server) -> None:
    shown = run(road, "sh", "-c", readme(road, "sh", "curl -s"))
    assert {"0", "1", "2", "3"} <= set(re.findall(r"^(\d) \S", shown, re.MULTILINE))


def test_the_readmes_client(road: Server) -> None:
    shown = run(road, sys.executable, "-c", readme(road, "python", "from openai import OpenAI"))
    assert {"0", "1", "2", "3"} <= set(re.findall(r"^(\d) \S", shown, re.MULTILINE))

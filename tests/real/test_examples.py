"""The examples, and what the README gives to paste, do what they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.real.processes import ROOT, Server

pytestmark = pytest.mark.model


ROADS = ("engine", "fanout")


def readme(language: str, holding: str) -> str:
    """The README's block of this language that holds a certain text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    [block] = [block for block in blocks if holding in block]
    assert "http://127.0.0.1:8000" in block
    return block


PROGRAMS: dict[str, Callable[[], list[str]]] = {
    "curl": lambda: ["sh", "examples/curl.sh"],
    "openai_n": lambda: [sys.executable, "examples/openai_n.py", "Name an animal."],
    "the README's curl": lambda: ["sh", "-c", readme("sh", "curl -s")],
    "the README's client": lambda: [sys.executable, "-c", readme("python", "from openai import OpenAI")],
}


def run(server: Server, argv: list[str]) -> str:
    env = {**os.environ, "NPROXY_URL": server.url, "OPENAI_BASE_URL": server.v1, "COLUMNS": "160"}
    words = [word.replace("http://127.0.0.1:8000", server.url) for word in argv]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


Shown = Mapping[tuple[str, str], Callable[[], str]]


@pytest.fixture(scope="module")
def shown(engine_road: Server, fanout_road: Server) -> Iterator[Shown]:
    """What each program prints on each road, once it has ended. All run at once, in the engine's same steps."""
    servers = dict(zip(ROADS, (engine_road, fanout_road), strict=True))
    with ThreadPoolExecutor(len(PROGRAMS) * len(ROADS)) as pool:
        yield {
            (name, road): pool.submit(lambda server, argv: run(server, argv()), servers[road], argv).result
            for name, argv in PROGRAMS.items()
            for road in ROADS
        }


@pytest.mark.parametrize("road", ROADS)
def test_curl(shown: Shown, road: str) -> None:
    answer = json.loads(shown["curl", road]())
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len({choice["message"]["content"] for choice in answer["choices"]}) == 4


@pytest.mark.parametrize("road", ROADS)
def test_openai_n(shown: Shown, road: str) -> None:
    said = shown["openai_n", road]()
    assert re.findall(r"choice \d", said) == ["choice 0", "choice 1", "choice 2", "choice 3"]
    assert len(re.findall(r"\b(?:stop|length)\b", said)) >= 4


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("program", ["the README's curl", "the README's client"])
def test_the_readme(shown: Shown, program: str, road: str) -> None:
    assert {"0", "1", "2", "3"} <= set(re.findall(r"^(\d) \S", shown[program, road](), re.MULTILINE))

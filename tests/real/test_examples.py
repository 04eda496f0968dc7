"""The examples do what they say."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import pytest

from tests.real.processes import ROOT, Server, nproxy

pytestmark = [pytest.mark.model, pytest.mark.timeout(330)]


ROADS = ("engine", "fanout")


IN_ONE = (
    "openai_whole",
    "openai_async",
    "structured_output",
    "tool_calls",
    "best_of_n",
    "self_consistency",
    "pass_at_k",
    "rl_rollouts",
    "evaluation",
)
"""Examples that are run in a few processes, one after another in each."""

PROCESSES = 3

ELSEWHERE = {
    "library": "tests/engine/test_library.py",
    "langchain_n": "tests/system/test_examples.py",
    "litellm_n": "tests/system/test_examples.py",
    "node/openai_n": "tests/system/test_examples.py",
    "node/fetch_sse": "tests/system/test_examples.py",
}
"""Examples that other tests run."""

PROGRAMS: dict[str, Callable[[], list[str]]] = {
    "curl": lambda: ["sh", "examples/curl.sh"],
    "curl_stream": lambda: ["sh", "examples/curl_stream.sh"],
    "openai_n": lambda: [sys.executable, "examples/openai_n.py", "Name an animal."],
}


def run(server: Server, argv: list[str], **more: str) -> str:
    env = {**os.environ, **more, "OPENAI_BASE_URL": server.v1, "COLUMNS": "160"}
    words = [word.replace("http://127.0.0.1:8000", server.url) for word in argv]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
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
def test_curl_stream(shown: Shown, road: str) -> None:
    *events, done = [line.removeprefix("data: ") for line in shown["curl_stream", road]().splitlines() if line]
    assert done == "[DONE]"
    assert {choice["index"] for event in events for choice in json.loads(event)["choices"]} == {0, 1, 2}


@pytest.mark.parametrize("name", ["curl", "curl_stream"])
def test_a_key_is_sent_by_those_without_a_library(engine_road: Server, logs: Path, name: str) -> None:
    with nproxy("--upstream", engine_road.v1, "--api-key", "of-the-test", log=logs / f"key-{name}.log") as gateway:
        assert "choices" in run(gateway, PROGRAMS[name](), OPENAI_API_KEY="of-the-test")


SAYS: dict[str, str] = {
    "openai_whole": r"(?s)(choice \d \((stop|length)\): \S.*){4}made by: \w+ in \d call\(s\)\ntokens: \d+ read, \d+",
    "openai_async": r"(Name .*\n  0: \S.*\n  1: \S.*\n){3}",
    "structured_output": r"(choice \d: Animal\(name=(.).+\2, lives='(on land|in water|in the air)', legs=\d+\)\n){4}",
    "tool_calls": r"(choice \d calls convert\(.*\)\n)+\d of 5 agree on .*: -?[\d.]+ degrees",
    "best_of_n": r"( ?-\d+\.\d+  \S.*\n){5}best_of: \S",
    "self_consistency": r"(\d of 8: -?[\d.]+\n)+|no choice holds a number",
    "pass_at_k": r"(\d+ . \d+: \d of 8 are right\n){3}(pass@\d = [01]\.\d{3}\n){4}",
    "rl_rollouts": r"(Write .*\n(  reward \d.\d\d, advantage [+-]\d.\d\d, \d+ tokens, -\d+\.\d in all: .*\n){4}){2}",
    "evaluation": r"(.* \.\.\. likeliest: \w+; said: \d+%\n){3}by likelihood: \d\.\d\d\nby generation: \d\.\d\d",
}


@pytest.fixture(scope="module")
def printed(engine_road: Server) -> Mapping[str, str]:
    """What each of IN_ONE prints."""

    def of(names: Sequence[str]) -> Mapping[str, str]:
        programs = [f"examples/{name}.py" for name in names]
        said: Mapping[str, str] = json.loads(
            run(engine_road, [sys.executable, "tests/real/one_after_another.py", *programs])
        )
        return said

    with ThreadPoolExecutor(PROCESSES) as pool:
        told = pool.map(of, [IN_ONE[first::PROCESSES] for first in range(PROCESSES)])
        return {name: said for some in told for name, said in some.items()}


@pytest.mark.parametrize("name", IN_ONE)
def test_an_example(printed: Mapping[str, str], name: str) -> None:
    assert re.match(SAYS[name], printed[name]), printed[name]


def test_the_likeliest_here_is_the_likeliest_there(printed: Mapping[str, str]) -> None:
    drawn, best = printed["best_of_n"].split("best_of: ")
    assert drawn.splitlines()[0].split("  ", 1)[1].strip() == best.strip()


def test_every_example_is_run_and_has_its_line() -> None:
    examples = {path.relative_to(ROOT / "examples") for path in (ROOT / "examples").rglob("*.*")}
    programs = {path for path in examples if path.suffix in (".py", ".mjs", ".sh")}
    run_here = {*IN_ONE, *ELSEWHERE, *PROGRAMS}
    assert {path.as_posix() for path in programs if path.with_suffix("").as_posix() not in run_here} == set()
    assert {path for path in ELSEWHERE.values() if not (ROOT / path).exists()} == set()
    index = (ROOT / "examples" / "README.md").read_text()
    assert set(re.findall(r"^\| \[`(.+?)`\]", index, re.MULTILINE)) == {path.as_posix() for path in programs}


def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_one() -> None:
    pass_at_k = runpy.run_path(str(ROOT / "examples" / "pass_at_k.py"))["pass_at_k"]
    for n, c, k in ((5, 2, 1), (5, 2, 3), (6, 0, 2), (4, 4, 4)):
        draws = [any(one < c for one in drawn) for drawn in combinations(range(n), k)]
        assert pass_at_k(n, c, k) == pytest.approx(sum(draws) / len(draws))

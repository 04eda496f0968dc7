"""LangChain's ChatOpenAI and LiteLLM as clients of both roads: libraries that rebuild choices on top of a client.

Each runs in a process of its own, which ends if it connects to anything but loopback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from tests.real.fixtures import MODEL
from tests.real.processes import Server
from tests.system.packages import installed

pytestmark = [pytest.mark.model, pytest.mark.timeout(330)]

PROGRAMS = Path(__file__).with_name("clients")
QUIET = {"LANGSMITH_TRACING": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
"""Send no traces, and fetch no price map."""

N = 3
ASKED: dict[str, Any] = {"model": MODEL, "seed": 21, "max_tokens": 40, "temperature": 0.9, "stop": ["."]}
SEA = "Write one sentence about the sea."
CAT = "Write one sentence about a cat."

Told: TypeAlias = Callable[[str, Server], Any]


def lonely() -> dict[str, str]:
    """Return an environment with the libraries, in which Python can reach only loopback."""
    return {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join([str(PROGRAMS), str(installed("clients"))])}


@pytest.fixture(scope="module")
def told() -> Told:
    """Return what one of the programs prints for a server; it runs once per program and server."""
    environment = lonely()
    seen: dict[tuple[str, str], Any] = {}

    def run(program: str, server: Server) -> Any:
        if (program, server.url) not in seen:
            argv = [sys.executable, str(PROGRAMS / program), server.v1, MODEL]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=300, env=environment)
            assert done.returncode == 0, done.stderr
            seen[program, server.url] = json.loads(done.stdout)
        return seen[program, server.url]

    return run


def plain(server: Server, n: int, content: str = SEA) -> ChatCompletion:
    """Send the same request with the official client, for comparison."""
    with OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=60.0) as client:
        asked: dict[str, Any] = {**ASKED, "messages": [{"role": "user", "content": content}]}
        answer: ChatCompletion = client.chat.completions.create(**asked, n=n)
        return answer


def said(answer: ChatCompletion) -> list[list[Any]]:
    texts = [[choice.message.content, choice.finish_reason] for choice in answer.choices]
    assert len({text for text, _ in texts}) == len(texts)
    return texts


def counted(answer: ChatCompletion) -> tuple[int, int, int]:
    assert answer.usage
    return answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens


def test_the_network_is_out_of_reach() -> None:
    program = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, env=lonely())
    assert (done.returncode, done.stderr) == (9, "socket.getaddrinfo: '192.0.2.1' is not on loopback\n")


def test_langchain_generates_n_texts(told: Told, road: Server) -> None:
    result, expected = told("langchain_chat.py", road)["generate"], plain(road, N)
    assert result["generations"] == [said(expected)]
    usage = result["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == counted(expected)


def test_langchain_generates_n_texts_for_each_of_two_questions_at_once(told: Told, road: Server) -> None:
    result, expected = told("langchain_chat.py", road)["agenerate"], [plain(road, N), plain(road, N, CAT)]
    assert result["generations"] == [said(one) for one in expected]
    assert result["usage"]["total_tokens"] == sum(counted(one)[2] for one in expected)


def test_langchain_streams(told: Told, road: Server) -> None:
    given, expected = told("langchain_chat.py", road), plain(road, 1)
    assert given["invoke"] == given["stream"]["text"] == expected.choices[0].message.content
    assert given["stream"]["pieces"] > 3
    usage = given["stream"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == counted(expected)


@pytest.mark.parametrize("form", ["completion", "acompletion"])
def test_litellm_gives_n_choices(told: Told, road: Server, form: str) -> None:
    given, expected = told("litellm_chat.py", road)[form], plain(road, N)
    choices = given["choices"]
    assert [choice["index"] for choice in choices] == list(range(N))
    assert [[choice["message"]["content"], choice["finish_reason"]] for choice in choices] == said(expected)
    usage = given["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == counted(expected)


def test_litellm_streams(told: Told, road: Server) -> None:
    parts, expected = told("litellm_chat.py", road)["stream"], plain(road, 1)
    text = "".join(choice["delta"].get("content") or "" for part in parts for choice in part["choices"])
    reasons = [choice["finish_reason"] for part in parts for choice in part["choices"] if choice["finish_reason"]]
    assert [[text, reason] for reason in reasons] == said(expected)
    assert len({part["id"] for part in parts}) == 1
    usage = parts[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == counted(expected)


@pytest.mark.parametrize("form", ["stream of n", "async stream of n"])
def test_litellm_streams_n_choices(told: Told, road: Server, form: str) -> None:
    """LiteLLM ends its stream at the second empty delta after the first finish_reason: longer choices lose their ends.

    LiteLLM 1.83 does this with every server that ends choices as OpenAI does; 1.109 no longer does. What it passes on
    must belong to the choice that it names.
    """
    parts, expected = told("litellm_chat.py", road)[form], plain(road, N)
    texts = [""] * N
    for part in parts:
        for choice in part["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    whole = [text for text, _ in said(expected)]
    assert all(text and full.startswith(text) for text, full in zip(texts, whole, strict=True))
    assert len({part["id"] for part in parts}) == 1
    assert any(text == full for text, full in zip(texts, whole, strict=True))


def test_litellm_completes_prompts(told: Told, road: Server) -> None:
    given = told("litellm_chat.py", road)["text_completion"]
    with OpenAI(base_url=road.v1, api_key="unused", max_retries=0, timeout=60.0) as client:
        expected = client.completions.create(**ASKED, prompt="The sea is", n=2)
    assert [(choice["index"], choice["text"]) for choice in given["choices"]] == [
        (choice.index, choice.text) for choice in expected.choices
    ]


def test_litellm_understands_a_refusal(told: Told, road: Server) -> None:
    refused = told("litellm_chat.py", road)["refused"]
    assert refused["status"] == 400
    assert "Invalid 'n': integer below minimum value." in refused["message"]

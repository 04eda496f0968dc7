"""The three processes live and die together."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from openai import InternalServerError, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.real.fixtures import MODEL
from tests.real.metrics import wait_for
from tests.real.processes import Server, nproxy

pytestmark = pytest.mark.model

START_SECONDS = 100.0


def answers(running: Server) -> bool:
    """Whether a request for two choices gets them."""
    with OpenAI(base_url=running.v1, api_key="unused", max_retries=0, timeout=30.0) as client:
        question: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]
        given = client.chat.completions.create(model=MODEL, messages=question, n=2, max_tokens=4)
    return len(given.choices) == 2


def recovered(running: Server) -> bool:
    """Whether it answers again; while the engine is away, errors of the server's kind are what a client gets."""
    try:
        return answers(running)
    except InternalServerError:
        return False


def test_L5_sigterm_ends_all_with_exit_0(default_model: Path, logs: Path) -> None:
    with nproxy(log=logs / "sigterm.log", seconds=START_SECONDS) as running:
        assert answers(running)
        started = running.children()
        running.process.terminate()
        assert running.process.wait(15.0) == 0
        assert len(started) >= 2, "engine server and core"
        assert psutil.wait_procs(started, timeout=2.0)[1] == []


def test_an_engine_that_was_killed_comes_back(default_model: Path, logs: Path) -> None:
    log = logs / "killed-engine.log"
    with nproxy(log=log, seconds=START_SECONDS) as running:
        # An engine that dies before its supervisor saw it ready ends the gateway, and /ready may know first.
        wait_for(lambda: "engine ready" in log.read_text(), seconds=5.0, what="the supervisor knows")
        before = running.children()
        core = max(before, key=lambda process: process.memory_info().rss)
        core.kill()
        wait_for(lambda: not core.is_running(), seconds=5.0, what="the core is gone")
        wait_for(lambda: recovered(running), seconds=60.0, what="answers again")
        assert core.pid not in [process.pid for process in running.children()]


def test_a_gateway_that_was_killed_leaves_no_engine_behind(default_model: Path, logs: Path) -> None:
    with nproxy(log=logs / "killed-gateway.log", seconds=START_SECONDS) as running:
        started = running.children()
        running.process.kill()
        running.process.wait()
        assert psutil.wait_procs(started, timeout=10.0)[1] == []

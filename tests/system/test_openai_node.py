"""The official Node client against both roads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.real.processes import Server
from tests.system.tools import run_node

pytestmark = pytest.mark.model


@pytest.fixture
def node(road: Server) -> Callable[[str], Any]:
    """Run one form of clients.mjs against the road; returns what it printed."""
    return partial(run_node, "clients.mjs", road=road)


def test_create(node: Callable[[str], Any]) -> None:
    answer = node("create")
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len({choice["message"]["content"] for choice in answer["choices"]}) == 4
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_stream(node: Callable[[str], Any]) -> None:
    whole, (*spoken, tail) = node("create"), node("stream")
    assert [chunk["choices"][0]["index"] for chunk in spoken[:4]] == [0, 1, 2, 3]
    texts, reasons = [""] * 4, [""] * 4
    for chunk in spoken:
        [choice] = chunk["choices"]
        assert chunk["usage"] is None
        texts[choice["index"]] += choice["delta"].get("content") or ""
        reasons[choice["index"]] += choice["finish_reason"] or ""
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]
    assert reasons == [choice["finish_reason"] for choice in whole["choices"]]
    assert (tail["choices"], tail["usage"]) == ([], whole["usage"])


def test_stream_helper_completes(node: Callable[[str], Any]) -> None:
    """The helper raises if a choice has no role or no finish reason."""
    whole, folded = node("create"), node("helper")
    said = [(c["index"], c["message"]["role"], c["message"]["content"], c["finish_reason"]) for c in whole["choices"]]
    assert [
        (c["index"], c["message"]["role"], c["message"]["content"], c["finish_reason"]) for c in folded["choices"]
    ] == said


def test_legacy_completions(node: Callable[[str], Any]) -> None:
    assert [choice["index"] for choice in node("completions")["choices"]] == [0, 1, 2, 3]


def test_A3_n_zero(node: Callable[[str], Any]) -> None:
    assert node("error") == {
        "name": "BadRequestError",
        "status": 400,
        "param": "n",
        "code": "integer_below_min_value",
    }

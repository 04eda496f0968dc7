"""What the default model's answers come to is as /openapi.json says: whole, in events, with all that can be told."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import pytest

from tests.gateway.openapi.described import answer_problems, request_problems
from tests.real.at_once import at_once
from tests.real.fixtures import MODEL
from tests.real.processes import Server

pytestmark = pytest.mark.model

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Name a color."}]},
    COMPLETIONS: {"prompt": "The sea is"},
}
TOOL = {"type": "function", "function": {"name": "paint", "parameters": {"type": "object", "properties": {}}}}

ASKED: list[tuple[str, dict[str, Any]]] = [
    *((CHAT, {"n": 2, "stream": stream, "logprobs": True, "top_logprobs": 2}) for stream in (False, True)),
    *((CHAT, {"stream": stream, "tools": [TOOL], "tool_choice": "required"}) for stream in (False, True)),
    *((COMPLETIONS, {"n": 2, "stream": stream, "logprobs": 1, "return_token_ids": True}) for stream in (False, True)),
    (CHAT, {"n": 2, "stream": True, "stream_options": {"include_usage": True}, "choice_params": [{"top_k": 5}, {}]}),
    (COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "echo": True, "best_of": 2}),
    (CHAT, {"n": 200}),
    (CHAT, {"model": "no-such-model"}),
]


def test_answers_are_as_described(engine_road: Server) -> None:
    with httpx.Client(base_url=engine_road.url, timeout=100, trust_env=False) as client:
        document = client.get("/openapi.json").json()
        bodies = [{"model": MODEL, "max_tokens": 6, **(PROMPTS[path]), **fields} for path, fields in ASKED]
        paths = [path for path, _ in ASKED]
        answers = at_once(*(partial(client.post, path, json=body) for path, body in zip(paths, bodies, strict=True)))
    for path, body, answer in zip(paths, bodies, answers, strict=True):
        assert answer_problems(document, "post", path, answer) == [], body
        assert (request_problems(document, path, body) == []) == (body.get("n") != 200)

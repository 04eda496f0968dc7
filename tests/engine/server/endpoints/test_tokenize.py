"""/tokenize and /detokenize: what the model would read, and the way back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.server.endpoints import tokenize
from tests.engine.asking import answer, refused
from tests.engine.conftest import MODEL
from tests.engine.server.letters import LETTERS
from tests.engine.server.test_serving import client_of, engine

CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


def spelled(text: str) -> list[int]:
    return list(LETTERS.encode_chat(text))


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_a_text_as_a_prompt_would_be_read(path: Path, prefix: str) -> None:
    async with engine(LETTERS, path), client_of(path) as client:
        asked = {"model": MODEL, "prompt": "Grüße <s>"}
        given = await answer(client, f"{prefix}/tokenize", asked)
        tokens = [0, *spelled("Grüße <s>")]
        assert given == {"count": len(tokens), "max_model_len": 512, "tokens": tokens, "token_strs": None}
        bare = await answer(client, f"{prefix}/tokenize", asked | {"add_special_tokens": False})
        assert bare["tokens"] == tokens[1:]
        back = await answer(client, f"{prefix}/detokenize", {"model": MODEL, "tokens": bare["tokens"]})
        assert back == {"prompt": "Grüße <s>"}  # the special token too


async def test_the_model_may_be_left_out_and_token_strings_come_along(path: Path) -> None:
    async with engine(LETTERS, path), client_of(path) as client:
        given = await answer(client, "/tokenize", {"prompt": "a b", "return_token_strs": True})
        assert given["token_strs"] == ["<s>", "a", "Ġ", "b"]


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_what_a_client_needs_to_know_of_the_tokenizer(path: Path, prefix: str) -> None:
    tokenizer = replace(LETTERS, special_strings={"bos_token": "<s>", "eos_token": "</s>"})
    async with engine(tokenizer, path), client_of(path) as client:
        given = (await client.get(f"{prefix}/tokenizer_info")).raise_for_status().json()
    assert LETTERS.template is not None and given["chat_template"] == LETTERS.template.source
    assert (given["bos_token"], given["eos_token"]) == ("<s>", "</s>")


async def test_a_chat_as_its_template_writes_it(path: Path) -> None:
    async with engine(LETTERS, path), client_of(path) as client:
        begun = await answer(client, "/tokenize", {"messages": CHAT})
        assert begun["tokens"] == spelled("u:hi;")
        switched = await answer(client, "/tokenize", {"messages": CHAT, "chat_template_kwargs": {"think": "?"}})
        assert switched["tokens"] == spelled("u:hi;?")


@pytest.mark.model
async def test_a_chat_with_and_without_the_answers_beginning(client: Any) -> None:
    chat = {"messages": [{"role": "user", "content": "Name a color."}]}
    asked = await answer(client, "/tokenize", chat)
    closed = await answer(client, "/tokenize", chat | {"add_generation_prompt": False})
    assert asked["count"] == 34 == len(asked["tokens"])  # what usage.prompt_tokens says of this chat
    assert asked["tokens"][: closed["count"]] == closed["tokens"]
    opening = asked["tokens"][closed["count"] :]
    assert await answer(client, "/detokenize", {"tokens": opening}) == {"prompt": "<|im_start|>assistant\n"}


@pytest.mark.parametrize(
    ("endpoint", "body", "param", "status"),
    [
        ("tokenize", {}, "prompt", 400),
        ("tokenize", {"prompt": 5}, "prompt", 400),
        ("tokenize", {"prompt": "a", "messages": CHAT}, "prompt", 400),
        ("tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt", 400),
        ("tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens", 400),
        ("tokenize", {"messages": []}, "messages", 400),
        ("tokenize", {"messages": [{"content": "hi"}]}, "messages.0.role", 400),
        ("tokenize", {"prompt": "a", "model": "other"}, "model", 404),
        ("tokenize", {"prompt": "a", "model": 3}, "model", 400),
        ("detokenize", {}, "tokens", 400),
        ("detokenize", {"tokens": "a"}, "tokens", 400),
        ("detokenize", {"tokens": [1, True]}, "tokens.1", 400),
        ("detokenize", {"tokens": [1, -1]}, "tokens.1", 400),
        ("detokenize", {"tokens": [1000]}, "tokens.0", 400),
        ("detokenize", {"tokens": [1], "skip": 1}, "skip", 400),
        ("detokenize", {"tokens": [1], "model": "other"}, "model", 404),
    ],
)
async def test_what_is_refused(path: Path, endpoint: str, body: dict[str, Any], param: str, status: int) -> None:
    async with engine(LETTERS, path), client_of(path) as client:
        got, error = await refused(client, f"/{endpoint}", body)
        assert (got, error["param"]) == (status, param)


async def test_length_is_limited(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize, "_LONGEST", 8)
    async with engine(LETTERS, path), client_of(path) as client:
        assert (await answer(client, "/tokenize", {"prompt": "a" * 8}))["count"] == 9
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("tokenize", {"prompt": "a" * 9}),
            ("tokenize", {"messages": [{"role": "user", "content": "a" * 9}]}),
            ("detokenize", {"tokens": [1] * 9}),
        ]
        for endpoint, body in bodies:
            assert (await refused(client, f"/{endpoint}", body))[1]["code"] == "string_above_max_length"

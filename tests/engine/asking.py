"""Requests to an engine, and readers of its answers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from engine.server.serving import Serving
from tests.clients import lines_of
from tests.engine.conftest import MODEL

QUESTION = [{"role": "user", "content": "Name a color."}]


@dataclass
class Folded:
    """A stream put together: by index the text and the finish reasons; and all chunks in their order."""

    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, list[str]] = field(default_factory=dict)
    chunks: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False


def chat(**fields: Any) -> dict[str, Any]:
    """Return a small chat request."""
    return {"model": MODEL, "messages": QUESTION, "max_tokens": 8, **fields}


async def answer(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON answer to a request that must succeed."""
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    parsed: dict[str, Any] = response.json()
    return parsed


async def ask(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """Return the JSON answer to a small chat request."""
    return await answer(client, "/v1/chat/completions", chat(**fields))


async def complete(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """Return the JSON answer to a small legacy completion."""
    return await answer(client, "/v1/completions", {"model": MODEL, "prompt": "The sky is", "max_tokens": 8, **fields})


def sent_to_core(served: Serving) -> list[Any]:
    """Return a list that gets every group which an engine sends to its core from now on."""
    sent: list[Any] = []
    core = served.router._core
    add = core.add

    def noted(message: Any) -> Any:
        sent.append(message)
        return add(message)

    core.add = noted  # type: ignore[method-assign]
    return sent


def texts(answered: dict[str, Any]) -> list[str]:
    """Return the texts of the choices, whose indices must count from 0."""
    choices = answered["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["message"]["content"] if "message" in choice else choice["text"] for choice in choices]


def counts(usage: dict[str, Any]) -> tuple[int, int]:
    """Return the tokens of prompt and answer; checks that the total is their sum and that not all is cached.

    At least one token of the prompt is always computed.
    """
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    assert usage["total_tokens"] == prompt + completion
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] < prompt
    return prompt, completion


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Folded:
    """Return a stream that must succeed, put together."""
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        return folded([line async for line in lines_of(response)])


async def streamed(client: httpx.AsyncClient, **fields: Any) -> Folded:
    """Return the stream of a small chat request, put together."""
    return await stream(client, "/v1/chat/completions", chat(**fields))


def folded(lines: list[str]) -> Folded:
    """Put the lines of a stream together; nothing may follow `[DONE]`."""
    whole = Folded()
    for line in lines:
        if not line or line.startswith(":"):  # the blank line after an event, or a ping on a slow machine
            continue
        assert not whole.done, line
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            whole.done = True
            continue
        chunk = json.loads(data)
        whole.chunks.append(chunk)
        for choice in chunk.get("choices", []):
            text = choice["text"] if "text" in choice else choice["delta"].get("content")
            whole.texts[choice["index"]] = whole.texts.get(choice["index"], "") + (text or "")
            if choice["finish_reason"] is not None:
                whole.reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    return whole


async def refused(client: httpx.AsyncClient, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    """Return status and error of a request that must fail with an error envelope."""
    response = await client.post(path, **({"content": body} if isinstance(body, bytes) else {"json": body}))
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["server"] == "nproxy"
    return response.status_code, error


async def raw(port: int, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection and send these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    return reader, writer


def post(path: str, body: dict[str, Any]) -> bytes:
    """Return the bytes of a request."""
    content = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: engine\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content


async def http_chunks(reader: asyncio.StreamReader) -> list[bytes]:
    """Read a chunked answer and return its chunks, as they were written; the head is checked and dropped."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower(), head
    chunks = []
    while (size := int(await reader.readuntil(b"\r\n"), 16)) > 0:
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    return chunks

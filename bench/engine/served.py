"""A peer that is asked over HTTP. What it sends is kept with its time and parsed only after the end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import aiohttp

from bench.engine.cells import Answer, Asked, WrongAnswer

_LIMIT_SECONDS = 600.0
Pieces = list[tuple[float, bytes]]
"""The bytes of one stream, each piece with the seconds from the start of the requests to its arrival."""


def ask(url: str, model: str, asked: Asked, extra: Mapping[str, Any]) -> Answer:
    """Send one streamed completion request per prompt, all at once. extra: fields that only this server needs.

    Raises WrongAnswer if a stream is not complete.
    """
    bodies = [
        {
            "model": model,
            "prompt": list(prompt),
            "n": asked.n,
            "max_tokens": asked.new,
            "ignore_eos": True,
            "temperature": 1.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **extra,
        }
        for prompt in asked.prompts
    ]
    return read(asyncio.run(_streams(f"{url}/v1/completions", bodies)), asked.n)


async def _streams(url: str, bodies: Iterable[Mapping[str, Any]]) -> list[Pieces]:
    timeout = aiohttp.ClientTimeout(total=_LIMIT_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        encoded = [json.dumps(body).encode() for body in bodies]
        began = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_stream(session, url, body, began)) for body in encoded]
        except* (aiohttp.ClientError, TimeoutError) as broken:
            raise WrongAnswer(f"the stream broke: {broken.exceptions[0]!r}") from broken
        except* WrongAnswer as refused:
            raise WrongAnswer(str(refused.exceptions[0])) from refused
        return [task.result() for task in tasks]


async def _stream(session: aiohttp.ClientSession, url: str, body: bytes, began: float) -> Pieces:
    pieces: Pieces = []
    async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
        if answer.status != 200:
            raise WrongAnswer(f"status {answer.status}: {(await answer.text())[:200]}")
        async for data in answer.content.iter_any():
            pieces.append((time.perf_counter() - began, data))
    return pieces


def read(streams: Iterable[Pieces], n: int) -> Answer:
    """Return the answer that the streams make up, each with n choices. Raises WrongAnswer if one is not complete."""
    firsts: list[float] = []
    seconds, drawn, given = 0.0, 0, 0
    for pieces in streams:
        voice = _Voices()
        for at, data in _events(pieces):
            voice.hear(at, data)
        if len(voice.spoke) != n or not voice.done:
            end = "[DONE] came" if voice.done else "[DONE] did not come"
            raise WrongAnswer(f"{len(voice.spoke)} of {n} choices said something, {end}")
        firsts += voice.spoke.values()
        seconds, drawn, given = max(seconds, pieces[-1][0]), drawn + voice.drawn, given + voice.given
    return Answer(seconds, min(firsts), max(firsts), drawn, given)


class _Voices:
    """The choices of one stream.

    A usage in an event without choices counts all choices. llama.cpp sends a usage with each choice's last chunk, which
    counts that choice only.
    """

    def __init__(self) -> None:
        self.spoke: dict[int, float] = {}
        self.drawn = 0
        self.given = 0
        self.done = False

    def hear(self, at: float, data: bytes) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if "error" in event:
            raise WrongAnswer(f"an error came: {json.dumps(event['error'])[:200]}")
        for choice in event["choices"]:
            if choice["text"]:
                self.spoke.setdefault(choice["index"], at)
        if usage := event.get("usage"):
            self.drawn = usage["completion_tokens"] + (self.drawn if event["choices"] else 0)
            self.given = usage["prompt_tokens"]


def _events(pieces: Pieces) -> Iterator[tuple[float, bytes]]:
    """Yield the data of each event, with the arrival time of its last byte; these servers send each in one line."""
    rest = b""
    for at, data in pieces:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield at, line[5:].strip()

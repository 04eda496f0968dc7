"""What a case is played on: nproxy in front of a real server, in one setting, and the server itself beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import httpx

from nproxy.cli.probe.findings import Finding
from nproxy.cli.probe.questions import VARIED
from tests.compatibility.record import Setting
from tests.conformance.reading import Reading, Whole, read_stream
from tests.real.counting_proxy import Counts

TOKENS = 8
"""Most tokens of a usual choice: few, so that a slow server has time for all cases."""


class NotApplicable(Exception):
    """The case makes no sense on this road; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The way to a server.

    http: for both ends. gateway, server: addresses without a path. model: the server's own name of it. extra: fields
    without which the server does not draw. counts: what reached the server through nproxy.
    """

    http: httpx.AsyncClient
    gateway: str
    server: str
    model: str
    setting: Setting
    findings: Mapping[str, Mapping[str, Finding]]
    extra: Mapping[str, Any]
    counts: Counts

    @property
    def alias(self) -> str:
        """The model as the client calls it: one gateway serves all settings, each under a name of its own."""
        return alias(self.setting)

    def at(self, setting: Setting) -> Self:
        """The same server in another setting."""
        return replace(self, setting=setting)

    def finding(self, fact: str) -> Finding:
        """What the probe says, by `section.fact`."""
        section, _, name = fact.partition(".")
        return self.findings[section][name]

    async def whole(self, n: int, **fields: Any) -> Whole:
        """n choices for each prompt through nproxy, as one JSON answer; a `prompt` makes it a legacy completion."""
        answer = await self.ask(n=n, **fields)
        if answer.status_code != 200:
            raise AssertionError(f"{answer.status_code}: {answer.text[:200]}")
        return Whole(answer.content, choices=n * _prompts(fields), chat="prompt" not in fields)

    async def stream(self, n: int, *, include_usage: bool = False, **fields: Any) -> Reading:
        """The same as a stream, read by a client that forgives nothing."""
        options = {"stream_options": {"include_usage": True}} if include_usage else {}
        answer = await self.ask(n=n, stream=True, **options, **fields)
        if answer.status_code != 200:
            raise AssertionError(f"{answer.status_code}: {answer.text[:200]}")
        choices = n * _prompts(fields)
        told = read_stream(answer.content, choices=choices, chat="prompt" not in fields, include_usage=include_usage)
        if told.error is not None:
            raise AssertionError(f"an error in the stream: {told.error['message']}")
        return told

    async def ask(self, **fields: Any) -> httpx.Response:
        """Any request, through nproxy."""
        path, body = self.request(fields)
        return await self.http.post(f"{self.gateway}{path}", json={"model": self.alias, **body})

    async def alone(self, **fields: Any) -> Whole | None:
        """One choice of the server itself, as a control; None where it does not answer that."""
        path, body = self.request(fields)
        answer = await self.http.post(f"{self.server}{path}", json={"model": self.model, **body})
        return Whole(answer.content, choices=1, chat="prompt" not in fields) if answer.status_code == 200 else None

    async def seeded(self, first: int, count: int) -> list[str]:
        """The server's own answers to so many seeds, asked one after the other."""
        return [await self._answer(seed) for seed in range(first, first + count)]

    async def steady(self, first: int, count: int) -> bool:
        """Whether the server gives the same answers to these seeds when they are asked all at once."""
        together = await asyncio.gather(*(self._answer(seed) for seed in range(first, first + count)))
        return together == await self.seeded(first, count)

    async def _answer(self, seed: int) -> str:
        told = await self.alone(seed=seed)
        return "" if told is None else told.texts[0]

    def request(self, fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Path and body of a request, without its model."""
        usual = {"max_tokens": TOKENS, "temperature": 1.0, **self.extra}
        if "prompt" in fields:
            return "/v1/completions", {**usual, **fields}
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": VARIED}], **usual, **fields}


def alias(setting: Setting) -> str:
    """The name under which a gateway serves the model in this setting."""
    return f"model-{setting}"


def _prompts(fields: Mapping[str, Any]) -> int:
    prompt = fields.get("prompt")
    return len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1

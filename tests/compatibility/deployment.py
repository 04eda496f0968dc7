"""What a case is played on: nproxy in front of a real server, in one setting, and the server itself as a control."""

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
"""max_tokens of a usual choice: few, so that a slow server can do all cases."""


class NotApplicable(Exception):
    """The case makes no sense here; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """nproxy in front of a server, in one setting."""

    http: httpx.AsyncClient
    """The client for both the gateway and the server."""
    gateway: str
    """The gateway's address, without a path."""
    server: str
    """The server's address, without a path."""
    model: str
    """The server's own name of the model."""
    setting: Setting
    findings: Mapping[str, Mapping[str, Finding]]
    extra: Mapping[str, Any]
    """Fields without which the server does not sample."""
    counts: Counts
    """What reached the server through nproxy."""

    @property
    def alias(self) -> str:
        """The model's name for clients: one gateway serves all settings, each under its own name."""
        return alias(self.setting)

    def at(self, setting: Setting) -> Self:
        """Return the same server in another setting."""
        return replace(self, setting=setting)

    def finding(self, fact: str) -> Finding:
        """Return the probe's finding for `section.fact`."""
        section, _, name = fact.partition(".")
        return self.findings[section][name]

    async def whole(self, n: int, **fields: Any) -> Whole:
        """Return n choices per prompt through nproxy as one JSON answer; a `prompt` makes it a legacy completion."""
        answer = await self.ask(n=n, **fields)
        if answer.status_code != 200:
            raise AssertionError(f"{answer.status_code}: {answer.text[:200]}")
        return Whole(answer.content, choices=n * _prompts(fields), chat="prompt" not in fields)

    async def stream(self, n: int, *, include_usage: bool = False, **fields: Any) -> Reading:
        """Return the same as a stream, read by a strict client."""
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
        """Send any request through nproxy."""
        path, body = self.request(fields)
        return await self.http.post(f"{self.gateway}{path}", json={"model": self.alias, **body})

    async def alone(self, **fields: Any) -> Whole | None:
        """Return one choice of the server itself, as a control; None if the server does not answer with 200."""
        path, body = self.request(fields)
        answer = await self.http.post(f"{self.server}{path}", json={"model": self.model, **body})
        return Whole(answer.content, choices=1, chat="prompt" not in fields) if answer.status_code == 200 else None

    async def seeded(self, first: int, count: int) -> list[str]:
        """Return the server's own answers to `count` seeds, asked one after the other."""
        return [await self._answer(seed) for seed in range(first, first + count)]

    async def steady(self, first: int, count: int) -> bool:
        """Whether the server gives the same answers to these seeds if they are asked concurrently."""
        together = await asyncio.gather(*(self._answer(seed) for seed in range(first, first + count)))
        return together == await self.seeded(first, count)

    async def _answer(self, seed: int) -> str:
        told = await self.alone(seed=seed)
        return "" if told is None else told.texts[0]

    def request(self, fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of a request, without its model."""
        usual = {"max_tokens": TOKENS, "temperature": 1.0, **self.extra}
        if "prompt" in fields:
            return "/v1/completions", {**usual, **fields}
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": VARIED}], **usual, **fields}


def alias(setting: Setting) -> str:
    """Return the name under which a gateway serves the model in this setting."""
    return f"model-{setting}"


def _prompts(fields: Mapping[str, Any]) -> int:
    prompt = fields.get("prompt")
    return len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1

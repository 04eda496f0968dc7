"""Checks an answer against the request: every byte of every choice, ends and usage; stores none of it."""

from __future__ import annotations

import orjson

from bench.load.ask import Ask
from bench.load.talk import PROMPT_TOKENS, RING, WIDTH, start


class Wrong(Exception):
    """The answer is not what was asked for."""


class Check:
    """Checks one answer. said: characters of each choice so far."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._starts = [start(ask.seed + index) for index in range(ask.n)]
        self.said = [0] * ask.n
        self._finished = [False] * ask.n
        self._usage = False
        self.done = False
        self.error: str | None = None

    def event(self, data: bytes) -> int:
        """Take one event; returns how many characters of text it brought. Raises Wrong."""
        if self.done or self.error is not None:
            raise Wrong(f"something behind the end: {data[:100]!r}")
        if data == b"[DONE]":
            self._end()
            return 0
        chunk = orjson.loads(data)
        if "error" in chunk:
            self.error = str(chunk["error"].get("message"))
            return 0
        if (usage := chunk.get("usage")) is not None:
            self._count(usage)
        brought = 0
        for choice in chunk["choices"]:
            brought += self._take(choice["index"], choice["delta"].get("content") or "", choice["finish_reason"])
        return brought

    def whole(self, body: bytes) -> None:
        """Take a whole JSON answer. Raises Wrong."""
        answer = orjson.loads(body)
        if sorted(choice["index"] for choice in answer["choices"]) != list(range(self._ask.n)):
            raise Wrong("not the choices that were asked for")
        for choice in answer["choices"]:
            self._take(choice["index"], choice["message"]["content"], choice["finish_reason"])
        self._count(answer["usage"])
        self._end()

    def _take(self, index: int, text: str, finish: str | None) -> int:
        if text:
            at = self.said[index]
            if self._finished[index] or not RING.startswith(text, self._starts[index] + at):
                raise Wrong(f"choice {index} says {text!r} at {at}")
            self.said[index] = at + len(text)
        if finish is not None:
            if finish != "length" or self._finished[index] or self.said[index] != self._ask.tokens * WIDTH:
                raise Wrong(f"choice {index} ends by {finish} at {self.said[index]}")
            self._finished[index] = True
        return len(text)

    def _count(self, usage: dict[str, int]) -> None:
        expected = (PROMPT_TOKENS, self._ask.tokens * self._ask.n)
        if self._usage or (usage["prompt_tokens"], usage["completion_tokens"]) != expected:
            raise Wrong(f"usage {usage} instead of {expected}")
        self._usage = True

    def _end(self) -> None:
        if not all(self._finished):
            raise Wrong(f"the answer is over, and its choices are not: {self.said}")
        if not self._usage and not self._ask.cuts:
            raise Wrong("no usage")
        self.done = True

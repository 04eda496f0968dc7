"""A strict client: it reads an answer, and raises Misread for anything that an SDK could stumble over."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

_OWN = {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}


class Misread(AssertionError):
    """The answer violates the API."""


def _read(data: bytes) -> Any:
    """Parse JSON as any parser accepts it: no key occurs twice, and there is no NaN or Infinity."""
    return json.loads(data, object_pairs_hook=_once_each, parse_constant=_not_json)


def _once_each(members: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(members)
    if len(read) != len(members):
        raise Misread(f"a key occurs twice: {[key for key, _ in members]}")
    return read


def _not_json(constant: str) -> Any:
    raise Misread(f"{constant} is not JSON")


@dataclass
class ToolCall:
    """A tool call as the official SDKs assemble it: parts of a field are concatenated."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass
class Voice:
    """One choice of a stream, assembled."""

    deltas: list[dict[str, Any]] = field(default_factory=list)
    choices: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    role: str | None = None
    finish: str | None = None
    tools: dict[int, ToolCall] = field(default_factory=dict)


class Reading:
    """A streamed answer, read to its end. Made by `read_stream`, which raises Misread.

    voices: the choices, by index. order: the indices in the order in which they came. error: the last event if it was
    an error. pings: number of comments. relayed: the server's own bytes are passed on, including chunks that carry
    nothing: chunks without choices, and "" as finish_reason.
    """

    def __init__(self, choices: int, *, chat: bool, include_usage: bool, continuous: bool, relayed: bool) -> None:
        self.chat, self.include_usage, self.continuous, self.relayed = chat, include_usage, continuous, relayed
        self.voices = [Voice() for _ in range(choices)]
        self.frames: list[bytes] = []
        self.chunks: list[dict[str, Any]] = []
        self.order: list[int] = []
        self.pings = 0
        self.usage: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.done = False
        self._totals = (0, 0)

    @property
    def texts(self) -> dict[int, str]:
        return {index: voice.text for index, voice in enumerate(self.voices)}

    @property
    def finishes(self) -> dict[int, str]:
        return {index: voice.finish for index, voice in enumerate(self.voices) if voice.finish is not None}

    def take(self, block: bytes) -> None:
        """Read the text between two blank lines."""
        if block == b": ping":
            self.pings += 1
            return
        if not block.startswith(b"data: ") or b"\n" in block or b"\r" in block:
            raise Misread(f"not one line of data: {block!r}")
        if self.done or self.error is not None:
            raise Misread(f"after the end: {block!r}")
        data = block[6:]
        self.frames.append(data)
        if data == b"[DONE]":
            self._finish()
            return
        chunk = _read(data)
        if chunk.get("error"):  # as the SDKs do
            self._take_error(chunk)
        else:
            self._take_chunk(chunk)

    def _finish(self) -> None:
        self.done = True
        silent = [index for index, voice in enumerate(self.voices) if voice.finish is None]
        if silent:
            raise Misread(f"[DONE], and these have no finish_reason: {silent}")

    def _take_error(self, chunk: dict[str, Any]) -> None:
        error = chunk["error"]
        if list(chunk) != ["error"] or not {"message", "type", "param", "code"} <= error.keys():
            raise Misread(f"not an error in the envelope: {chunk}")
        self.error = error

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        if self.usage is not None:
            raise Misread(f"a chunk after the usage: {chunk}")
        for key in ("id", "object", "created", "model"):
            if key not in chunk:
                raise Misread(f"a chunk without {key}: {chunk}")
            if self.chunks and chunk[key] != self.chunks[0][key]:
                raise Misread(f"another {key}: {chunk[key]!r} after {self.chunks[0][key]!r}")
        if chunk["object"] != ("chat.completion.chunk" if self.chat else "text_completion"):
            raise Misread(f"not this endpoint's chunk: {chunk['object']}")
        self.chunks.append(chunk)
        self._take_usage(chunk)
        if chunk["choices"]:
            if len(chunk["choices"]) != 1:
                raise Misread(f"several choices in one chunk: {chunk}")
            self._take_choice(chunk["choices"][0])

    def _take_usage(self, chunk: dict[str, Any]) -> None:
        if ("usage" in chunk) != self.include_usage:
            raise Misread(f"usage is there where it was not asked for, or the other way round: {chunk}")
        usage = chunk.get("usage")
        if not chunk["choices"]:
            if usage is None and not self.relayed and chunk.keys() <= _OWN:
                raise Misread(f"a chunk that says nothing: {chunk}")
            self.usage = usage
        elif usage is not None and not self.continuous:
            raise Misread(f"usage before its time: {chunk}")
        if usage is not None:
            if usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]:
                raise Misread(f"a total that is no sum: {usage}")
            totals = usage["prompt_tokens"], usage["completion_tokens"]
            if totals[0] < self._totals[0] or totals[1] < self._totals[1]:
                raise Misread(f"a total that falls: {totals} after {self._totals}")
            self._totals = totals

    def _take_choice(self, choice: dict[str, Any]) -> None:
        index = choice["index"]
        if type(index) is not int or not 0 <= index < len(self.voices):
            raise Misread(f"no such choice: {index!r}")
        voice = self.voices[index]
        if voice.finish is not None:
            raise Misread(f"choice {index} has finished: {choice}")
        self.order.append(index)
        voice.choices.append(choice)
        if self.chat:
            self._take_delta(index, voice, choice["delta"])
        else:
            voice.text += choice["text"]
        voice.finish = choice["finish_reason"]
        if voice.finish == "":
            if not self.relayed:
                raise Misread(f"a finish_reason that says nothing: {choice}")
            voice.finish = None

    def _take_delta(self, index: int, voice: Voice, delta: dict[str, Any]) -> None:
        if "role" in delta:
            if voice.role is not None:
                raise Misread(f"choice {index} has two roles: {delta}")
            if delta["role"] != "assistant":
                raise Misread(f"choice {index} has the role {delta['role']!r}")
            voice.role = delta["role"]
        elif voice.role is None:
            raise Misread(f"choice {index} speaks without a role: {delta}")
        voice.deltas.append(delta)
        voice.text += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            self._take_call(voice, call)

    def _take_call(self, voice: Voice, call: dict[str, Any]) -> None:
        place = call["index"]
        if place not in voice.tools:
            if place != len(voice.tools):
                raise Misread(f"tool call {place} comes after {len(voice.tools)} others")
            voice.tools[place] = ToolCall()
        known, function = voice.tools[place], call.get("function") or {}
        if "id" in call and known.id:
            raise Misread(f"a tool call is named twice: {call}")
        known.id += call.get("id") or ""
        known.name += function.get("name") or ""
        known.arguments += function.get("arguments") or ""


def read_stream(
    raw: bytes,
    *,
    choices: int,
    chat: bool = True,
    include_usage: bool = False,
    continuous: bool = False,
    relayed: bool = False,
) -> Reading:
    """Read a whole streamed answer with so many choices. It ends with `[DONE]` or with an error event."""
    reading = Reading(choices, chat=chat, include_usage=include_usage, continuous=continuous, relayed=relayed)
    *blocks, rest = raw.split(b"\n\n")
    if rest:
        raise Misread(f"the last event has no end: {rest[-200:]!r}")
    for block in blocks:
        reading.take(block)
    if not reading.done and reading.error is None:
        raise Misread("the stream stops without [DONE] and without an error")
    return reading


class Whole:
    """A whole JSON answer. choices: in order, one for each index."""

    def __init__(self, raw: bytes, *, choices: int, chat: bool = True) -> None:
        self.answer: dict[str, Any] = _read(raw)
        self.chat = chat
        if self.answer.get("error", "") != "":
            raise Misread(f"an error: {self.answer}")
        if self.answer["object"] != ("chat.completion" if chat else "text_completion"):
            raise Misread(f"not this endpoint's answer: {self.answer['object']}")
        self.choices: list[dict[str, Any]] = self.answer["choices"]
        if [choice["index"] for choice in self.choices] != list(range(choices)):
            raise Misread(f"the choices are {[choice['index'] for choice in self.choices]}")
        for choice in self.choices:
            if chat and choice["message"]["role"] != "assistant":
                raise Misread(f"a message of {choice['message']['role']!r}")
            if not isinstance(choice["finish_reason"], str):
                raise Misread(f"no finish_reason: {choice}")
        self.usage: dict[str, Any] | None = self.answer.get("usage")
        if self.usage and self.usage["total_tokens"] != self.usage["prompt_tokens"] + self.usage["completion_tokens"]:
            raise Misread(f"a total that is no sum: {self.usage}")

    @property
    def texts(self) -> dict[int, str]:
        return {c["index"]: (c["message"]["content"] or "") if self.chat else c["text"] for c in self.choices}

    @property
    def finishes(self) -> dict[int, str]:
        return {choice["index"]: choice["finish_reason"] for choice in self.choices}

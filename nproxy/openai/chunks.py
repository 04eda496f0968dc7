"""What an upstream sent, as values: stream chunks and whole answers of both dialects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from nproxy.openai.dialect import CHAT, Dialect
from nproxy.openai.frozen import frozen
from nproxy.openai.jsonvalue import JSON, dumps, loads
from nproxy.openai.tools import with_texts
from nproxy.openai.usage import Usage, parse_usage

_OWN = frozenset({"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "error"})
_OF_CHAT = {holder: frozenset({"index", holder, "finish_reason", "logprobs"}) for holder in ("delta", "message")}
_OF_COMPLETIONS = frozenset({"index", "text", "finish_reason", "logprobs"})
_NOTHING: Mapping[str, JSON] = {}

EMPTY_VALUES: tuple[JSON, ...] = (None, "", [], {})
"""Members of a delta that say nothing."""

_NO_REASON = ("", "null")  # KoboldCpp until March 2025, and Ai00: "null" in unfinished chunks

_SUCCESS = (None, "", 0, "0", 200, "200")
"""Codes that name no error."""

_NUMBERS = (int, float)  # Cloudflare's Workers AI: a token that is a number comes as one (cloudflare/ai#651)

DONE_DATA = b"[DONE]"
LONGEST_MARK = 15
"""The most bytes, blanks included, of an event's data that is a mark and says nothing of a choice."""


class MalformedChunk(ValueError):
    """The data is not a chunk or an answer of this dialect. The message quotes nothing of it."""


@frozen
class UpstreamChoice:
    """One choice of a chunk, or of a whole answer."""

    index: int
    """The upstream's."""
    delta: Mapping[str, JSON]
    """For chat, the delta (of a whole answer: the message) without its role, and with texts for a content that is a
    number, and for ids and arguments of calls that are none. For legacy completions, `{"text": ...}`."""
    role: str | None
    """None also for null and ""."""
    finish_reason: str | None
    """None also for "", and for "null" in quotes."""
    logprobs: JSON
    extra: Mapping[str, JSON]
    """All other keys of the choice, unknown ones included (stop_reason, token_ids ...)."""

    @property
    def bare(self) -> bool:
        """Whether it contains only a role, empty values and nulls, so that dropping it loses nothing."""
        if self.finish_reason is not None or self.logprobs is not None:
            return False
        for value in self.delta.values():
            if value not in EMPTY_VALUES:
                return False
        return not self.extra or all(value is None for value in self.extra.values())


@frozen
class UpstreamChunk:
    """A chunk or a whole answer."""

    choices: tuple[UpstreamChoice, ...]
    usage: Usage | None
    """That of the one choice, if there is none beside the choices. None if absent, null or unreadable."""
    fingerprint: str | None
    error: JSON
    """The in-band error; then nothing else counts. None also if it is empty."""
    extra: Mapping[str, JSON]
    """Top-level keys other than id, object, created, model, choices, usage, system_fingerprint and error."""
    came: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """All of it, as parsed."""


def is_done(data: bytes) -> bool:
    """Whether an event's data is the `[DONE]` mark, stray blanks allowed."""
    return len(data) <= LONGEST_MARK and data.strip() == DONE_DATA


def is_null(data: bytes) -> bool:
    """Whether an event's data says nothing: `null`, with which llama.cpp begins streams of several prompts, or `{}`."""
    return len(data) <= LONGEST_MARK and data.strip() in (b"null", b"{}")


def parse_chunk(data: bytes, dialect: Dialect) -> UpstreamChunk:
    """Parse one event's data. Raises MalformedChunk. An absent index is 0; absent choices are an empty list."""
    value = parse_object(data)
    if (error := error_in(value)) is not None:
        return UpstreamChunk((), None, None, error, _NOTHING)
    return chunk_of(value, dialect)


def parse_answer(body: bytes, dialect: Dialect, read: Callable[[bytes], Any] = loads) -> UpstreamChunk:
    """Parse a whole answer into the same value: each message becomes one delta. Raises MalformedChunk.

    A choice that says nothing at all, not even why it ended, is malformed. A `[DONE]` event behind the answer (9router)
    is left out. read: `loads`, or `loads_but_long_parts`.
    """
    try:
        value = parse_object(body, read)
    except MalformedChunk:
        before, _, mark = body.rpartition(b"data:")
        if not is_done(mark):
            raise
        value = parse_object(before)
    if (error := error_in(value)) is not None:
        return UpstreamChunk((), None, None, error, _NOTHING)
    answer = chunk_of(value, dialect, "message")
    for choice in answer.choices:
        if choice.finish_reason is None and not any(choice.delta.values()):
            raise MalformedChunk("a choice is empty and has no finish_reason")
    return answer


def parse_object(data: bytes, read: Callable[[bytes], Any] = loads) -> dict[str, Any]:
    """Parse a JSON object. Raises MalformedChunk."""
    try:
        value = read(data)
    except ValueError:
        raise MalformedChunk("it is not JSON") from None
    if not isinstance(value, dict):
        raise MalformedChunk("it is not an object")
    return value


def error_in(value: dict[str, Any]) -> Any:
    """Return the error that an object contains, or is; None if there is none, or an empty one."""
    error = value if value.get("object") == "error" else value.get("error")
    if not error and not value.get("choices") and _coded(value):
        return value
    return error or None


def _coded(value: dict[str, Any]) -> bool:
    """Whether a code says that an object without choices is an error.

    MiniMax's, FastChat's, or one beside a text: Z.ai's `{"code": 401, "msg": "token expired ..."}`, iFlow's
    `{"status": "434", "msg": "Invalid apiKey ..."}`, iFlytek's `{"code": 10012, "message": ...}`.
    """
    outcome = value.get("base_resp")
    if isinstance(outcome, dict):
        return bool(outcome.get("status_code"))
    if value.get("error_code"):
        return True
    if not isinstance(value.get("msg"), str) and not isinstance(value.get("message"), str):
        return False
    code = value.get("code")
    if code is None and str(status := value.get("status")).isdecimal():  # in words, it may tell of progress
        code = status
    return code not in _SUCCESS


def chunk_of(value: dict[str, Any], dialect: Dialect, holder: str = "delta") -> UpstreamChunk:
    """Read a chunk that contains no error. Raises MalformedChunk.

    holder: the key of what a choice says. With "message", it is a whole answer, which must have choices.
    """
    choices = value.get("choices")
    if choices is None and holder == "delta":
        choices = []
    if not isinstance(choices, list):
        raise MalformedChunk("its choices are not a list")
    read = [_choice(choice, dialect, holder) for choice in choices]
    fingerprint = value.get("system_fingerprint")
    usage = parse_usage(value.get("usage"))
    if usage is None and len(read) == 1:
        usage = parse_usage(read[0].extra.get("usage"))  # Moonshot, with the finish (earendil-works/pi#2017)
    return UpstreamChunk(
        tuple(read),
        usage,
        fingerprint if isinstance(fingerprint, str) else None,
        None,
        _others(value, _OWN),
        value,
    )


def _choice(choice: object, dialect: Dialect, holder: str) -> UpstreamChoice:
    if not isinstance(choice, dict):
        raise MalformedChunk("a choice is not an object")
    index = choice.get("index")
    if index is None:
        index = 0
    elif type(index) is not int or index < 0:
        raise MalformedChunk("a choice's index is not a whole number")
    reason = choice.get("finish_reason")
    if reason is not None:
        if not isinstance(reason, str):
            raise MalformedChunk("a finish_reason is not a string")
        if reason in _NO_REASON:
            reason = None
    if dialect is CHAT:
        role, delta = _said(choice, holder)
        own = _OF_CHAT[holder]
    else:
        role, delta, own = None, _text(choice), _OF_COMPLETIONS
    return UpstreamChoice(index, delta, role, reason, choice.get("logprobs"), _others(choice, own))


def _said(choice: dict[str, Any], holder: str) -> tuple[str | None, Mapping[str, JSON]]:
    """Return the role of a chat's choice, and its delta or message without it."""
    delta = choice.get(holder)
    role = None
    if delta is None:
        delta = {}
    elif not isinstance(delta, dict):
        raise MalformedChunk(f"a choice's {holder} is not an object")
    elif "role" in delta:
        delta = delta.copy()
        role = delta.pop("role")
        if not isinstance(role, str) or not role:
            role = None
    if type(content := delta.get("content")) in _NUMBERS:
        delta = {**delta, "content": dumps(content).decode()}
    if "tool_calls" in delta or "function_call" in delta:
        delta = with_texts(delta)
    return role, delta


def _text(choice: dict[str, Any]) -> dict[str, JSON]:
    """Return what a choice of a legacy completion says, in the form of a delta."""
    text = choice.get("text")
    if text is None:
        text = ""
    elif not isinstance(text, str):
        raise MalformedChunk("a choice's text is not a string")
    return {"text": text}


def as_delta(choice: UpstreamChoice) -> UpstreamChoice:
    """Return a chat's choice that has a message in place of a delta as if that were the delta. Its role is left out.

    Raises MalformedChunk.
    """
    extra = {**choice.extra}
    _, delta = _said(extra, "message")
    del extra["message"]
    return replace(choice, delta=delta, role=None, extra=extra)


def _others(value: dict[str, Any], own: frozenset[str]) -> Mapping[str, JSON]:
    """Return the members with keys other than these."""
    return _NOTHING if value.keys() <= own else {key: member for key, member in value.items() if key not in own}

"""What upstreams say: chunks as servers write them, whole answers, and failures."""

from __future__ import annotations

import json
from typing import Any

from nproxy.choices import reading
from nproxy.choices.events import Failure, FailureKind
from nproxy.openai.jsonvalue import JSON


def delta(content: str | None = None, *, index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    """A chat chunk as vLLM writes it. Keys of `more`: role, tool_calls, ... go into the delta; `top` beside choices."""
    top = more.pop("top", {})
    choice_keys: dict[str, Any] = {key: more.pop(key) for key in ("logprobs", "stop_reason") if key in more}
    said: dict[str, Any] = more if content is None else {"content": content, **more}
    choice: dict[str, Any] = {"index": index, "delta": said, "logprobs": None, "finish_reason": finish, **choice_keys}
    return chunk([choice], **top)


def text(said: str, *, index: int = 0, finish: str | None = None, logprobs: Any = None, **top: Any) -> bytes:
    """A legacy chunk, or with usage a whole legacy answer of one choice."""
    choice = {"index": index, "text": said, "logprobs": logprobs, "finish_reason": finish}
    return chunk([choice], object="text_completion", **top)


def chunk(choices: list[Any], **top: Any) -> bytes:
    """Any chunk."""
    head = {"id": "up-1", "object": "chat.completion.chunk", "created": 5, "model": "up"}
    return json.dumps({**head, "choices": choices, **top}, separators=(",", ":")).encode()


def framed(*events: bytes) -> bytes:
    """Events as they stand in a stream."""
    return b"".join(b"data: " + event + b"\n\n" for event in events)


def usage_chunk(prompt: int, completion: int, **details: Any) -> bytes:
    """The chunk behind the last choice."""
    return chunk([], usage=usage(prompt, completion, **details))


def usage(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    """A usage object."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**counts, **details}


def answer(*contents: str, prompt: int = 10, tokens: int | None = None, finish: str = "stop", **top: Any) -> bytes:
    """A whole chat answer with these contents; `tokens` None leaves usage out."""
    choices = [
        {"index": i, "message": {"role": "assistant", "content": content}, "finish_reason": finish}
        for i, content in enumerate(contents)
    ]
    body = {"id": "up-1", "object": "chat.completion", "created": 5, "model": "up", "choices": choices}
    if tokens is not None:
        body["usage"] = usage(prompt, tokens)
    return json.dumps({**body, **top}).encode()


DONE = b"[DONE]"
ROLE = delta("", role="assistant")
STOP = delta(finish="stop")

OK_STREAM = (ROLE, delta("a"), delta("b"), STOP, DONE)


def status(code: int, body: bytes = b"", *, retry_after: float | None = None, own_key: bool = False) -> Failure:
    """An answer with another status than 2xx."""
    return Failure(
        FailureKind.STATUS,
        f"The upstream answered {code}.",
        status=code,
        content_type="application/json",
        body=body or json.dumps({"error": {"message": f"says {code}", "type": "t"}}).encode(),
        retry_after=retry_after,
        own_key=own_key,
    )


def failure(kind: FailureKind) -> Failure:
    """A failure without an answer."""
    return Failure(kind, f"It failed: {kind}.")


def in_band(error: JSON | bytes) -> Failure:
    """An error within a 200: the envelope's inside, or the very bytes."""
    return reading.in_band(error if isinstance(error, bytes) else json.dumps({"error": error}).encode()).failure


NOBODY = Failure(FailureKind.UNAVAILABLE, "There is no server that can be asked now.", retry_after=1.0)

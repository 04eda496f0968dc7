"""Chunks run over both paths, rewritten and parsed, and compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nproxy.openai.chunks import UpstreamChoice, parse_chunk
from nproxy.openai.dialect import Dialect
from nproxy.openai.places import with_values
from nproxy.openai.rewriter import Rewriter
from nproxy.openai.sse import BETWEEN, SSEDecoder
from nproxy.openai.wire import Wire

CHAT, COMPLETIONS = Dialect.CHAT, Dialect.COMPLETIONS
OFFSET = 40


def wire(dialect: Dialect) -> Wire:
    return Wire(dialect, "chatcmpl-own", 17, "shown", include_usage=True)


def written(dialect: Dialect, choice: UpstreamChoice, top: Mapping[str, Any]) -> bytes:
    """What a merge does with a plain chunk: its own index and head, the role left out, all else kept."""
    return wire(dialect).chunk(
        choice.index + OFFSET,
        choice.delta,
        finish_reason=choice.finish_reason,
        logprobs=choice.logprobs,
        extra=choice.extra,
        top=top,
    )


class Paths:
    """Runs chunks over both paths, and compares the fast one with the slow one."""

    def __init__(self, dialect: Dialect = CHAT) -> None:
        self.dialect = dialect
        self.rewriter = Rewriter(dialect)
        self.hits = 0

    def full(self, data: bytes) -> bytes:
        chunk = parse_chunk(data, self.dialect)
        (choice,) = chunk.choices
        assert choice.finish_reason is None
        assert chunk.usage is None
        return written(self.dialect, choice, chunk.extra)

    def send(self, data: bytes) -> bool:
        """Send one chunk; says whether it took the fast path."""
        hit = self.rewriter.swap(data)
        if hit is not None:
            assert same(hit, self.full(data))
            self.hits += 1
            return True
        chunk = parse_chunk(data, self.dialect)
        self.rewriter.learn(
            data, chunk, lambda values, _: written(self.dialect, *with_values(chunk.choices[0], chunk.extra, values))
        )
        return False

    def send_all(self, *chunks: bytes) -> int:
        """Send several at once; says how many of those in front took the fast path."""
        frames, number, rest = self.rewriter.swap_all(BETWEEN.join(chunks))
        left = len(rest.split(BETWEEN)) if rest else 0
        taken = len(chunks) - left
        assert number == taken
        assert rest == BETWEEN.join(chunks[taken:])
        assert same(frames, b"".join(map(self.full, chunks[:taken])))
        return taken


def same(frames: bytes, others: bytes) -> bool:
    """Whether frames are the same but for blanks and the form of numbers in values that are passed on unread."""
    if frames == others:
        return True
    events, wanted = (list(SSEDecoder().feed(these)) for these in (frames, others))
    return [json.loads(event.data) for event in events] == [json.loads(event.data) for event in wanted]


def vllm(text: str, index: int = 0, *, ascii_only: bool = False, key: str = "content", **choice: Any) -> bytes:
    value = {
        "id": "chatcmpl-u",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "up",
        "choices": [{"index": index, "delta": {key: text}, "logprobs": None, "finish_reason": None} | choice],
    }
    return json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":")).encode()


def taught(**options: Any) -> Paths:
    paths = Paths()
    assert not paths.send(vllm("a", **options))
    assert not paths.send(vllm("b", **options))  # two alike make a template
    assert paths.send(vllm("c", **options))
    return paths


FINISH = vllm("", finish_reason="stop")

"""Text offsets of legacy log probabilities, made continuous over the chunks of one choice."""

from __future__ import annotations

from nproxy.openai.jsonvalue import JSON


class TextOffsets:
    """The `text_offset` of one choice so far.

    Some servers count every chunk from 0. If a chunk starts before the end of the previous one, its offsets are moved
    to the end of the text so far. The offsets of a server that counts through are not changed.
    """

    __slots__ = ("_length", "_start")

    def __init__(self) -> None:
        self._start: int | None = None
        self._length = 0

    def mend(self, logprobs: JSON, text: JSON) -> JSON:
        """Return the chunk's logprobs with continuous offsets. `text`: the chunk's own text, counted in characters."""
        before = self._length
        self._length += len(text) if isinstance(text, str) else 0
        offsets = logprobs.get("text_offset") if isinstance(logprobs, dict) else None
        if not isinstance(logprobs, dict) or not isinstance(offsets, list) or not offsets:
            return logprobs
        counted = [offset for offset in offsets if isinstance(offset, int)]
        if len(counted) != len(offsets):
            return logprobs
        if self._start is None:
            self._start = max(0, counted[0] - before)
        end = self._start + before
        if counted[0] >= end:
            return logprobs
        moved: list[JSON] = [offset - counted[0] + end for offset in counted]
        return {**logprobs, "text_offset": moved}

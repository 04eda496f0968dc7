"""The two dialects of generation: chat completions and legacy completions."""

from __future__ import annotations

from enum import StrEnum


class Dialect(StrEnum):
    """Which endpoint a request came in on. The value is the endpoint's path after `/v1/`."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"

    @property
    def id_prefix(self) -> str:
        """The prefix of the ids of answers."""
        return "chatcmpl-" if self is Dialect.CHAT else "cmpl-"

    @property
    def chunk_object(self) -> str:
        """The `object` of a stream chunk."""
        return "chat.completion.chunk" if self is Dialect.CHAT else "text_completion"

    @property
    def answer_object(self) -> str:
        """The `object` of a whole answer."""
        return "chat.completion" if self is Dialect.CHAT else "text_completion"

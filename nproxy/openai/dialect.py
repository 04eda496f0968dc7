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
        return "chatcmpl-" if self is CHAT else "cmpl-"

    @property
    def chunk_object(self) -> str:
        """The `object` of a stream chunk."""
        return "chat.completion.chunk" if self is CHAT else "text_completion"

    @property
    def answer_object(self) -> str:
        """The `object` of a whole answer."""
        return "chat.completion" if self is CHAT else "text_completion"

    @property
    def empty_delta(self) -> dict[str, str]:
        """A delta that says nothing."""
        return {} if self is CHAT else {"text": ""}


CHAT = Dialect.CHAT
"""The same, for what every request asks: in Python 3.11, to read a member of an enum takes three times as long as to
call a function."""

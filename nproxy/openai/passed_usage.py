"""The token counts in an answer that is passed through: found in its bytes, which nothing parses or changes.

Every API that counts tokens reports them in an object `usage`: OpenAI's chats, embeddings and responses, Anthropic's
messages, the rerankers of vLLM and Jina. A string in JSON cannot look like one, because its quotes are escaped.
"""

from __future__ import annotations

import re

from nproxy.openai.usage import MOST_TOKENS

LONGEST = 4096
"""Length of the longest `usage` object that is found, in bytes; OpenAI's has about 250."""

_USAGE = re.compile(rb'"usage"\s*:\s*\{((?:[^{}]++|\{[^{}]*+\})*+)\}')
"""The objects in it, such as `input_tokens_details`, have none of their own. Nothing is tried twice (`++`, `*+`)."""
_BEGUN = b'"usage"'
(_NEW_LINE,) = b"\n"
_COUNT = re.compile(rb'"(?:(prompt|input)|(completion|output)|total)_tokens"\s*:\s*(\d{1,16})(?![\d.eE])')


class PassedUsage:
    """The largest counts of all `usage` objects in an answer that comes in pieces; streams report growing counts.

    found: whether there were any. events: how many of a stream ended with a piece or within one, so at least so many
    came; each holds a token or more, except a few.
    """

    __slots__ = ("_completion", "_prompt", "_rest", "_total", "events", "found")

    def __init__(self) -> None:
        self.found = False
        self.events = 0
        self._prompt = self._completion = self._total = 0
        self._rest = b""

    @property
    def prompt(self) -> int:
        """Tokens of the prompt: all tokens if the answer only reports how many there are in all."""
        return max(self._prompt, self._total - self._completion)

    @property
    def completion(self) -> int:
        """Completion tokens so far."""
        return self._completion

    def feed(self, data: bytes) -> None:
        """Take the next piece of the answer."""
        if _NEW_LINE in data:
            self.events += data.count(b"\n\n") + data.count(b"\n\r\n")
        data = self._rest + data
        ended = 0
        if data.rfind(_BEGUN) >= 0:  # `in` takes twice as long, a search by `re` even longer
            for usage in _USAGE.finditer(data):
                self._count(usage[1])
                ended = usage.end()
        begun = data.rfind(_BEGUN, max(ended, len(data) - LONGEST))
        self._rest = data[begun:] if begun >= 0 else data[max(ended, len(data) - len(_BEGUN)) :]

    def _count(self, usage: bytes) -> None:
        for count in _COUNT.finditer(usage):
            number = int(count[3])
            if number > MOST_TOKENS:
                continue
            self.found = True
            if count[1]:
                self._prompt = max(self._prompt, number)
            elif count[2]:
                self._completion = max(self._completion, number)
            else:
                self._total = max(self._total, number)

"""What an upstream sent, as values: stream chunks and whole answers; and byte rewriting for the usual chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.usage import Usage


class MalformedChunk(ValueError):
    """What came is not a chunk or an answer of this dialect; the message quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class UpstreamChoice:
    """One choice of a chunk, or of a whole answer.

    index: the upstream's. delta: for chat the delta (of a whole answer: the message) without its role, for
    legacy completions `{"text": ...}`. role: where one was sent and not null. finish_reason: None also for "".
    extra: all other keys of the choice, unknown ones included (stop_reason, token_ids ...).
    """

    index: int
    delta: Mapping[str, JSON]
    role: str | None
    finish_reason: str | None
    logprobs: JSON
    extra: Mapping[str, JSON]

    @property
    def bare(self) -> bool:
        """Whether nothing but a role, empty strings and nulls is in it: dropping it loses nothing."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class UpstreamChunk:
    """A chunk or a whole answer. error: the in-band error (any value but null); then nothing else counts.

    usage: None where absent, null or unreadable. extra: top-level keys other than id, object, created,
    model, choices, usage, system_fingerprint and error.
    """

    choices: tuple[UpstreamChoice, ...]
    usage: Usage | None
    fingerprint: str | None
    error: JSON
    extra: Mapping[str, JSON]


def is_done(data: bytes) -> bool:
    """Whether an event's data is the `[DONE]` mark, stray blanks allowed."""
    return len(data) < 16 and data.strip() == b"[DONE]"


def parse_chunk(data: bytes, dialect: Dialect) -> UpstreamChunk:
    """Parse one event's data. Raises MalformedChunk. An absent index is 0; absent choices are none."""
    raise NotImplementedError


def parse_answer(body: bytes, dialect: Dialect) -> UpstreamChunk:
    """Parse a whole (non-streaming) answer into the same value: each message becomes one delta. Raises MalformedChunk."""
    raise NotImplementedError


class Rewriter:
    """Rewrites the usual chunk of one leg on its bytes, without parsing it.

    Most chunks of a choice differ in one string only. From a fully parsed chunk the rewriter learns the bytes
    before and behind that string, and what the client gets before and behind it. The next chunk with the
    very same surroundings, and a string that needs no second look, is the client's by swapping them.

    Its output equals what parsing and writing would give, byte for byte. One object per leg:

        hit = rewriter.swap(data)
        if hit is not None: index, frame = hit           # upstream index; bytes of the client's whole frame
        else: chunk = parse_chunk(data, dialect) ...      # the full road; then, for a chunk that was written
              rewriter.learn(data, chunk, render)         # as one plain frame, teach it

    After a choice's finish call `forget(index)`, so that stray chunks take the full road and are dropped.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def swap(self, data: bytes) -> tuple[int, bytes] | None:
        """Give the upstream's index and the client's frame, or None if this chunk must be parsed."""
        raise NotImplementedError

    def learn(self, data: bytes, chunk: UpstreamChunk, render: Callable[[UpstreamChoice], bytes]) -> None:
        """Learn from a chunk that was just parsed from `data`.

        render: writes the client's frame for the chunk's one choice; must depend on nothing but the choice.
        Chunks that are not plain text (role, usage, finish, log probabilities, several choices, tools) teach
        nothing, so it may be called for every chunk.
        """
        raise NotImplementedError

    def forget(self, index: int) -> None:
        """Drop what was learned for this upstream index."""
        raise NotImplementedError

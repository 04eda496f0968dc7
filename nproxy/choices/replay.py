"""Replay: a leg that was cut is called again with its seed. What the client has is compared and dropped.

A choice has channels: each text of its delta (content, reasoning, refusal, the arguments of one tool call ...), and
each list. Only the length and a hash of a channel are kept. The repetition may be cut into other chunks, so the two are
compared when the channel reaches the length that was sent. Nothing new is sent before all channels have reached theirs.
Log probabilities and token ids are lists beside the text; as many of their entries are dropped as were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Protocol

from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.fold import SENT_ONCE
from nproxy.choices.reading import LegFault
from nproxy.choices.records import light
from nproxy.openai.chunks import UpstreamChoice
from nproxy.openai.jsonvalue import JSON, dumps, loads

Path = tuple[str | int, ...]
"""The place of a channel in a delta: `("content",)`, `("tool_calls", 0, "function", "arguments")`."""

_MOST_UNHASHED = 1024
_DIFFERS = Failure(
    FailureKind.DIFFERS,
    "The upstream's answer broke off, and the repeated answer differs from the part that had been sent.",
)


class Tape:
    """What was sent over one channel: its length and its hash, however it was cut and escaped.

    Texts are measured and hashed as UTF-16, in which half of a surrogate pair is a unit of its own, because servers
    split characters over chunks, too.
    """

    __slots__ = ("_hash", "_length", "_raw")

    def __init__(self) -> None:
        self._length = 0
        self._hash = blake2b(digest_size=16)
        self._raw = bytearray()  # text as it was in JSON, not yet measured and hashed

    def hear(self, escaped: bytes) -> None:
        """Take a text as it is between the quotes of a JSON string."""
        self._raw += escaped
        if len(self._raw) > _MOST_UNHASHED:
            self._settle()

    def add(self, data: bytes) -> None:
        """Take bytes: a text in UTF-16, or an item in JSON."""
        self._settle()
        self._length += len(data)
        self._hash.update(data)

    @property
    def length(self) -> int:
        """Bytes so far."""
        self._settle()
        return self._length

    @property
    def digest(self) -> bytes:
        """The hash of these bytes."""
        self._settle()
        return self._hash.digest()

    def _settle(self) -> None:
        if self._raw:
            data = _units(loads(b'"' + self._raw + b'"'))
            self._raw.clear()
            self._length += len(data)
            self._hash.update(data)


def _units(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")


def _item(value: JSON) -> bytes:
    return dumps(value) + b","


class _Leaf(Protocol):
    """What is done with the parts of a delta. Each method returns what remains of the part, None for nothing."""

    def text(self, path: Path, text: str) -> JSON: ...

    def name(self, path: Path, name: str) -> JSON: ...

    def items(self, path: Path, items: list[JSON]) -> JSON: ...


def _through(value: JSON, path: Path, leaf: _Leaf) -> JSON:
    """Return what remains of a value. Numbers and nulls remain with what is beside them."""
    if light(value):
        return value
    match value:
        case str():
            return leaf.name(path, value) if path[-1] in SENT_ONCE else leaf.text(path, value)
        case list() if path == ("tool_calls",):
            calls = (_through(call, (*path, _index(call, place)), leaf) for place, call in enumerate(value))
            return [call for call in calls if not light(call)] or None
        case list():
            return leaf.items(path, value)
        case dict():
            parts = ((key, _through(member, (*path, key), leaf)) for key, member in value.items())
            kept: dict[str, JSON] = {key: part for key, part in parts if part is not None}
            return None if light(kept) else kept
        case _:
            return value


def _index(call: JSON, place: int) -> int:
    index = call.get("index") if isinstance(call, dict) else None
    return index if isinstance(index, int) else place


class Transcript:
    """The record of one choice by channel: see SentRecord."""

    __slots__ = ("_counts", "_names", "_tapes")

    def __init__(self) -> None:
        self._tapes: dict[Path, Tape] = {}
        self._names: set[Path] = set()  # ids and types that were sent: a second call may have others
        self._counts: dict[Path, int] = {}  # entries sent of lists beside the delta

    def __bool__(self) -> bool:
        return bool(self._tapes or self._names or self._counts)

    def hear(self, key: str) -> Callable[[bytes], None]:
        """Like SentRecord.hear."""
        return self._tape((key,)).hear

    def note(self, piece: UpstreamChoice) -> None:
        """Like SentRecord.note."""
        _through(dict(piece.delta), (), self)
        for where, beside in (("logprobs", piece.logprobs), ("extra", piece.extra)):
            for key, value in beside.items() if isinstance(beside, Mapping) else ():
                if isinstance(value, list) and value:
                    self._counts[where, key] = self._counts.get((where, key), 0) + len(value)

    def again(self) -> Replay:
        """Like SentRecord.again."""
        channels = {path: _Channel(tape.length, tape.digest) for path, tape in self._tapes.items()}
        return Replay(channels, frozenset(self._names), dict(self._counts))

    def text(self, path: Path, text: str) -> JSON:
        """Record a text; all of it remains."""
        self._tape(path).add(_units(text))
        return text

    def name(self, path: Path, name: str) -> JSON:
        """Record that there was a name; it remains."""
        self._names.add(path)
        return name

    def items(self, path: Path, items: list[JSON]) -> JSON:
        """Record items; all of them remain."""
        tape = self._tape(path)
        for item in items:
            tape.add(_item(item))
        return items

    def _tape(self, path: Path) -> Tape:
        return self._tapes.setdefault(path, Tape())


@dataclass(slots=True)
class _Channel:
    """A channel that is repeated. length, digest: of what was sent; everything behind it is new."""

    length: int
    digest: bytes
    tape: Tape = field(default_factory=Tape)

    @property
    def left(self) -> int:
        """How much of what was sent has not been repeated yet."""
        return self.length - self.tape.length

    def hear(self, data: bytes) -> None:
        """Compare what is repeated. Raises LegFault if it differs."""
        self.tape.add(data)
        if self.left <= 0 and self.tape.digest != self.digest:  # below 0 if an item is longer
            raise LegFault(_DIFFERS)


class Replay:
    """One call that repeats a choice: see Repeat. Made from the choice's transcript, which may grow meanwhile."""

    __slots__ = ("_channels", "_counts", "_names", "_new")

    def __init__(self, channels: Mapping[Path, _Channel], names: frozenset[Path], counts: dict[Path, int]) -> None:
        self._channels = channels
        self._names = names
        self._counts = counts
        self._new = False  # something in the current chunk is new

    @property
    def over(self) -> bool:
        """Like Repeat.over."""
        return not any(self._counts.values()) and self._caught_up

    @property
    def _caught_up(self) -> bool:
        return not any(channel.left for channel in self._channels.values())

    def rest(self, piece: UpstreamChoice) -> UpstreamChoice | None:
        """Like Repeat.rest."""
        self._new = piece.finish_reason is not None
        delta = _through(dict(piece.delta), (), self)
        logprobs = self._behind(piece.logprobs, "logprobs")
        if self._new and not self._caught_up:
            raise LegFault(_DIFFERS)  # it has become another answer, or is shorter
        extra = self._behind(piece.extra, "extra")
        if not self._new:
            return None
        kept = delta if isinstance(delta, dict) else {}
        if "text" in piece.delta:
            kept.setdefault("text", "")
        any_logprobs = any(isinstance(value, list) and value for value in logprobs.values())
        return replace(piece, delta=kept, logprobs=logprobs if any_logprobs else None, extra=extra)

    def text(self, path: Path, text: str) -> JSON:
        """Return what was not sent of a text. Raises LegFault if the rest differs from what was sent."""
        channel, data = self._channels.get(path), _units(text)
        sent = 0 if channel is None else min(channel.left, len(data))
        if channel is not None and sent:
            channel.hear(data[:sent])
        if sent == len(data):
            return None
        self._new = True
        return data[sent:].decode("utf-16-le", "surrogatepass")

    def name(self, path: Path, name: str) -> JSON:
        """Return a name if none was sent in its place."""
        if path in self._names:
            return None
        self._new = True
        return name

    def items(self, path: Path, items: list[JSON]) -> JSON:
        """Return the items that were not sent. Raises LegFault if the others differ from those that were."""
        channel = self._channels.get(path)
        for place, item in enumerate(items):
            if channel is None or not channel.left:
                self._new = True
                return items[place:]
            channel.hear(_item(item))
        return None

    def _behind(self, beside: JSON | Mapping[str, JSON], where: str) -> dict[str, JSON]:
        """Return what is beside a delta, without the entries of its lists that were sent."""
        kept: dict[str, JSON] = {}
        for key, value in beside.items() if isinstance(beside, Mapping) else ():
            if isinstance(value, list):
                sent = self._counts.get((where, key), 0)
                self._counts[where, key] = max(0, sent - len(value))
                value = value[sent:]
                self._new |= bool(value)
            kept[key] = value
        return kept

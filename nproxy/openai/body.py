"""A request's JSON body: parsed once, kept exact, and spliced into the bodies of upstream calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from nproxy.openai.jsonvalue import JSON


@dataclass(frozen=True, slots=True)
class Spliced:
    """The body of an upstream call in two pieces, to be written one after the other.

    head: bytes shared by all legs that touch the same keys. tail: this leg's own few fields.
    """

    head: bytes
    tail: bytes

    def __len__(self) -> int:
        return len(self.head) + len(self.tail)

    def __bytes__(self) -> bytes:
        return self.head + self.tail


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Body:
    """A JSON object as a client sent it.

    raw: the bytes, exact, unless a key stood twice at the root; then only its last value is in them.
    fields: the parsed values by key. Both are read-only by agreement: nothing may change them.
    """

    raw: bytes
    fields: Mapping[str, JSON]
    _members: Mapping[str, tuple[int, int]]  # key -> span of `"key": value` in raw
    _heads: dict[frozenset[str], bytes] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Body({len(self.raw)} bytes)"  # what a client wrote belongs in no log

    @classmethod
    def parse(cls, raw: bytes, *, max_depth: int = 64) -> Body:
        """Parse a UTF-8 JSON object.

        Raises ApiError 400 with param null for: not UTF-8, not JSON (NaN, Infinity and numbers beyond a
        double included), not an object, nesting deeper than `max_depth`, lone surrogates, integers of
        thousands of digits.
        """
        raise NotImplementedError

    def splice(self, set: Mapping[str, JSON], drop: Collection[str] = ()) -> Spliced:
        """Give the body with the fields of `set` in place of its own and without those named in `drop`.

        Untouched values keep their exact bytes. The head is built once for each set of touched keys.
        """
        raise NotImplementedError

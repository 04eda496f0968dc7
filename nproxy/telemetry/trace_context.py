"""Which trace a request belongs to, as its caller says: the headers of W3C Trace Context (levels 1 and 2)."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SAMPLED, RANDOM = 0x01, 0x02
_KNOWN_FLAGS = SAMPLED | RANDOM
MOST_MEMBERS = 32
"""Of `tracestate`; a longer list is none."""

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KEY, _CHAR = r"[a-z0-9][a-z0-9_\-*/@]{0,255}", r"\x21-\x2b\x2d-\x3c\x3e-\x7e"
_MEMBER = re.compile(f"({_KEY})=[ {_CHAR}]{{0,255}}[{_CHAR}]")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A place in a trace.

    trace_id: 32 hex digits. span_id: 16, of what calls next. flags: those that version 00 knows. state: `tracestate`,
    which goes on as it came; "" for none. given: `traceparent` as it came, "" where it did not come from outside.
    """

    trace_id: str
    span_id: str
    flags: int
    state: str = ""
    given: str = ""

    @property
    def sampled(self) -> bool:
        """Whether the caller may have recorded it."""
        return bool(self.flags & SAMPLED)

    @property
    def headers(self) -> Mapping[str, str]:
        """What is sent on: word for word what came, or version 00."""
        parent = self.given or f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"
        return {"traceparent": parent, "tracestate": self.state} if self.state else {"traceparent": parent}


def read(parents: Sequence[str], states: Sequence[str]) -> TraceContext | None:
    """What the `traceparent` and `tracestate` lines of a request say; None where they name no trace.

    A malformed `traceparent`, or two of them, counts as none, and `tracestate` with it; a malformed `tracestate` alone
    is left out. Of versions above 00 the known parts count.
    """
    found = _PARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    malformed = version == "ff" or (version == "00" and more is not None)
    if malformed or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return TraceContext(trace_id, span_id, int(flags, 16) & _KNOWN_FLAGS, _state(states), parents[0])


def unrecorded() -> TraceContext:
    """A new trace that nobody records, so that those who are called next do not begin ones of their own."""
    return TraceContext(f"{random.getrandbits(128) or 1:032x}", f"{random.getrandbits(64) or 1:016x}", RANDOM)


def _state(lines: Sequence[str]) -> str:
    """The lines as one; "" where any part is malformed, a key stands twice, or there are too many."""
    state = ",".join(lines)
    members = [member for part in state.split(",") if (member := part.strip(" \t"))]
    keys = [found[1] for member in members if (found := _MEMBER.fullmatch(member))]
    good = len(members) <= MOST_MEMBERS and len(keys) == len(members) == len(set(keys))
    return state.strip(" \t") if good and members else ""

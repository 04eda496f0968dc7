"""The trace that a request belongs to, as its caller says: the headers of W3C Trace Context (levels 1 and 2)."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SAMPLED, RANDOM = 0x01, 0x02
_KNOWN_FLAGS = SAMPLED | RANDOM
MOST_MEMBERS = 32
"""Maximum number of members of `tracestate`; a longer list is ignored."""

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KEY, _CHAR = r"[a-z0-9][a-z0-9_\-*/@]{0,255}", r"\x21-\x2b\x2d-\x3c\x3e-\x7e"
_MEMBER = re.compile(f"({_KEY})=[ {_CHAR}]{{0,255}}[{_CHAR}]")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A position in a trace."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits: the span that is the parent of the next call."""
    flags: int
    """The flags that version 00 defines."""
    state: str = ""
    """`tracestate`, which is forwarded as received; "" for none."""
    given: str = ""
    """`traceparent` as received; "" if it did not come from outside."""

    @property
    def sampled(self) -> bool:
        """Whether the caller may have recorded it."""
        return bool(self.flags & SAMPLED)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers to send on: `traceparent` exactly as received, or in version 00."""
        parent = self.given or f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"
        return {"traceparent": parent, "tracestate": self.state} if self.state else {"traceparent": parent}


def read(parents: Sequence[str], states: Sequence[str]) -> TraceContext | None:
    """Parse the `traceparent` and `tracestate` lines of a request; returns None if they name no trace.

    A malformed `traceparent`, or two of them, counts as none, and `tracestate` is then ignored too; a malformed
    `tracestate` alone is dropped. For versions above 00 the known parts count.
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
    """Start a new trace that is not recorded, so that the servers called next do not start traces of their own."""
    return TraceContext(f"{random.getrandbits(128) or 1:032x}", f"{random.getrandbits(64) or 1:016x}", RANDOM)


def _state(lines: Sequence[str]) -> str:
    """Join the lines; returns "" if any part is malformed, a key occurs twice, or there are too many."""
    state = ",".join(lines)
    members = [member for part in state.split(",") if (member := part.strip(" \t"))]
    keys = [found[1] for member in members if (found := _MEMBER.fullmatch(member))]
    good = len(members) <= MOST_MEMBERS and len(keys) == len(members) == len(set(keys))
    return state.strip(" \t") if good and members else ""

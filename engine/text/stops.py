"""Stop strings in a text that comes in pieces: where it ends, and what may already be shown.

A stop string ends the text as soon as it is complete, wherever the pieces are cut. The one that is complete first
counts, and of several that are complete at the same character the longest. The text is cut before it, or after it if it
is kept. What could still be the beginning of a stop string is held back.
"""

from __future__ import annotations


class StopScanner:
    """Scans one choice's text. `matched` is the stop string that ended it, or None."""

    __slots__ = ("_early", "_held", "_keep", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...], *, keep: bool = False) -> None:
        """`stops`: non-empty strings; without any, `feed` passes everything through."""
        self._stops = stops
        self._keep = keep
        self._held = ""
        self._early = 0  # characters of `_held` that came too early for a stop string to be complete there
        self.matched: str | None = None

    def feed(self, text: str, *, ends: bool = True) -> str:
        """Add text and return what may be shown now; nothing after a match.

        ends: whether a stop string that is complete in this text counts. In any case one may begin there.
        """
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        seen = self._held + text
        if not ends:
            self._early = len(seen)
        found = min(
            [(at + len(stop), at, stop) for stop in self._stops if (at := self._find(stop, seen)) >= 0], default=None
        )
        if found is not None:
            end, at, self.matched = found
            self._held = ""
            return seen[: end if self._keep else at]
        keep = len(seen) - self._begun(seen)
        self._held = seen[keep:]
        self._early = max(self._early - keep, 0)
        return seen[:keep]

    def flush(self) -> str:
        """End the choice for another reason: return what was held back, which is ordinary text after all."""
        held, self._held = self._held, ""
        return held

    def _find(self, stop: str, seen: str) -> int:
        """Return where a stop string that counts begins; -1 if there is none."""
        return seen.find(stop, max(self._early - len(stop) + 1, 0))

    def _begun(self, seen: str) -> int:
        """Return the length of the longest end of `seen` that is the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            at = seen.find(stop[0], max(len(seen) - len(stop) + 1, 0))
            while at >= 0 and len(seen) - at > longest:
                if stop.startswith(seen[at:]):
                    longest = len(seen) - at
                    break
                at = seen.find(stop[0], at + 1)
        return longest

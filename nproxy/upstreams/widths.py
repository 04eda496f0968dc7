"""What answers have shown of an upstream's `n` for one model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Width:
    """How wide calls may be.

    limit: most choices of one call; None if no limit was found. worked: width of the widest call that brought all its
    choices. doubted: the last call was no wider than that, and yet came short.
    """

    limit: int | None = None
    worked: int = 1
    doubted: bool = False

    def after(self, asked: int, got: int) -> Width:
        """What is known after a call for `asked` choices that brought `got`.

        If that width was refused, `got` is a narrower one that was accepted. A width that has worked is given up only
        if a second call comes short after the first.
        """
        got = max(1, got)
        if got >= asked:
            within = self.limit is not None and asked <= self.limit
            return Width(self.limit if within else None, max(self.worked, asked))
        if got >= self.worked or self.doubted:
            return Width(got, got)
        if asked > self.worked:
            return Width(self.worked, self.worked)
        return Width(self.limit, self.worked, doubted=True)

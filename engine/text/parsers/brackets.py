"""Finds where a JSON object ends in a text that comes in pieces."""

from __future__ import annotations

import re

_OUTSIDE = re.compile(r'["{}\[\]<]')
_QUOTED = re.compile(r'["\\]')


class Brackets:
    """Counts brackets outside strings, beginning before an object's first one.

    It checks nothing else: a model's JSON may be wrong in other ways and still have an end.

    depth: brackets open so far. broken: there was a "<" outside strings, which no JSON has: one of the model's marks
    cuts the object short.
    """

    __slots__ = ("_escaped", "_quoted", "broken", "depth")

    def __init__(self) -> None:
        self.depth = 0
        self.broken = False
        self._quoted = False
        self._escaped = False

    def feed(self, text: str, until: int) -> int | None:
        """Read on to where the depth decreases to `until`, or the object breaks off.

        Returns how many characters were read up to there; None if all were read and the end is still to come.
        """
        at = 1 if self._escaped and text else 0
        self._escaped = self._escaped and not text
        while found := (_QUOTED if self._quoted else _OUTSIDE).search(text, at):
            mark, at = found[0], found.end()
            if mark == '"':
                self._quoted = not self._quoted
            elif mark == "\\":
                self._escaped = at == len(text)
                at += 1
            elif mark == "<":
                self.broken = True
                return found.start()
            elif mark in "{[":
                self.depth += 1
            else:
                self.depth -= 1
                if self.depth <= until:
                    return at
        return None

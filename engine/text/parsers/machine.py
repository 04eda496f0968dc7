"""What all parsers of marked text share: text that is not yet parsed, and a state that consumes it."""

from __future__ import annotations

from collections.abc import Callable

from engine.text.parsers.parts import Part

State = Callable[[list[Part], bool], bool]
"""Consumes what it can parse of the machine's text and appends the parts; the flag says that no more text comes. True:
run again at once, in another state or further on. False: nothing to do before more text comes.
"""


class Machine:
    """One choice's parser. `_state` is its state, `_text` what has not been parsed yet."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._text = ""

    def feed(self, text: str) -> list[Part]:
        """Add text; return the parts that are certain now."""
        self._text += text
        return self._run(final=False)

    def finish(self) -> list[Part]:
        """End the choice: return the rest, which can no longer become anything else."""
        return self._run(final=True)

    def _run(self, *, final: bool) -> list[Part]:
        parts: list[Part] = []
        while self._state(parts, final):
            pass
        return parts

"""What all parsers of marked text share: text not yet understood, and a state that takes from it."""

from __future__ import annotations

from collections.abc import Callable

from engine.text.parsers.parts import Part

State = Callable[[list[Part], bool], bool]
"""Takes what it understands from the machine's text and appends the parts; the flag says that no more text comes.
True: the machine goes on at once, in another state or further on. False: there is nothing to do before more text."""


class Machine:
    """One choice's parser. `_state` is the state it is in, `_text` what has not been understood yet."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._text = ""

    def feed(self, text: str) -> list[Part]:
        """Take more text; the parts that are certain now."""
        self._text += text
        return self._run(final=False)

    def finish(self) -> list[Part]:
        """The choice has ended: the rest, which no longer may become anything else."""
        return self._run(final=True)

    def _run(self, *, final: bool) -> list[Part]:
        parts: list[Part] = []
        while self._state(parts, final):
            pass
        return parts

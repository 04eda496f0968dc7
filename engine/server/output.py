"""One request's answer taking shape: drawn tokens in, pieces of text per choice out. No IO.

The whole answer is the fold of the same pieces that a stream sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.messages import TokenDrawn
from engine.text.detokenizer import Detokenizer, TokenBytes
from engine.text.stops import StopScanner


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice has to say next: text, and the finish reason with the last of it."""

    index: int
    text: str
    finish: str | None


@dataclass(frozen=True, slots=True)
class Taken:
    """What a batch of tokens came to: pieces in index order, one per choice at most, and the choices
    (group, choice) that a stop string ended although the core would go on."""

    pieces: tuple[Piece, ...]
    cut: tuple[tuple[int, int], ...]


class Output:
    """All choices of a request: `n` for each of its groups, one group per prompt, in the prompts' order.

    stops: what ends each of a group's choices. echo: one text per group, shown at the beginning of each of its choices.
    completion_tokens: tokens that belong to the answer so far, stop tokens included. A choice that a stop
    string ended counts up to the token that completed the string; what the core drew beyond is not the
    client's.
    """

    def __init__(
        self, groups: Sequence[int], table: TokenBytes, stops: Sequence[tuple[str, ...]], echo: Sequence[str]
    ) -> None:
        """`stops` has one entry for each of the n choices, `echo` one for each group."""
        self._first = {group: number * len(stops) for number, group in enumerate(groups)}
        self._choices = [_Choice(table, mine, text) for text in echo for mine in stops]
        self._running = set(range(len(self._choices)))
        self.completion_tokens = 0

    @property
    def finished(self) -> bool:
        """Every choice has its finish reason."""
        return not self._running

    def take(self, tokens: Sequence[TokenDrawn]) -> Taken:
        """Take tokens in the order in which they were drawn; those of finished choices are passed over."""
        touched: dict[int, list[str]] = {}
        cut: list[tuple[int, int]] = []
        for drawn in tokens:
            index = self._first[drawn.group] + drawn.choice
            if index not in self._running:
                continue
            choice = self._choices[index]
            self.completion_tokens += 1
            touched.setdefault(index, []).append(choice.take(drawn.token, drawn.finish))
            if choice.finish is not None:
                self._running.discard(index)
                if drawn.finish is None:
                    cut.append((drawn.group, drawn.choice))
        pieces = (Piece(index, "".join(touched[index]), self._choices[index].finish) for index in sorted(touched))
        return Taken(tuple(piece for piece in pieces if piece.text or piece.finish), tuple(cut))


class _Choice:
    """One choice's way from tokens to text."""

    __slots__ = ("_detokenizer", "_echo", "_scanner", "finish")

    def __init__(self, table: TokenBytes, stops: tuple[str, ...], echo: str) -> None:
        self._detokenizer = Detokenizer(table)
        self._scanner = StopScanner(stops)
        self._echo = echo
        self.finish: str | None = None

    def take(self, token: int, finish: str | None) -> str:
        """The text that may be shown now. A stop token ends the choice and is not part of the text."""
        text = "" if finish == "stop" else self._scanner.feed(self._detokenizer.feed(token))
        if finish is not None:
            text += self._scanner.feed(self._detokenizer.flush())
        if self._scanner.matched is not None:
            finish = "stop"
        elif finish is not None:
            text += self._scanner.flush()
        self.finish = finish
        echo, self._echo = self._echo, ""
        return echo + text

"""One request's answer while it is computed: drawn tokens in, parts of what each choice says out. No IO.

The whole answer is the fold of the same pieces that a stream sends.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from engine.messages import Logprobs, Started, TokenDrawn
from engine.text.detokenizer import Detokenizer, TokenBytes
from engine.text.parsers.parts import Content, Parser, Part, Plain, Reasoning, ToolStart
from engine.text.stops import StopScanner


@dataclass(frozen=True, slots=True)
class ReportedToken:
    """A token, as it may be reported to the client.

    offset: characters of the choice's text before it, including the echo's. echoed: it is one of the prompt's. said:
    its text is content, or it shows nothing and stands behind content; others are reasoning, a call or a mark.
    """

    token: int
    logprobs: Logprobs | None
    offset: int
    echoed: bool = False
    said: bool = True


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice has to say next, and the finish reason with the last piece.

    reported: if tokens are reported, those whose text is in the parts. One that shows nothing yet, or never will, comes
    with the next piece; the last piece has all that are left. stop_reason: in the last piece, what the client named and
    the choice ended with: a stop string or the id of a stop token.
    """

    index: int
    parts: tuple[Part, ...]
    finish: str | None
    reported: tuple[ReportedToken, ...] = ()
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of a batch of events: pieces in index order, at most one per choice, and the choices (group, choice)
    that a stop string ended although the core would go on.
    """

    pieces: tuple[Piece, ...]
    cut: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Manner:
    """How one choice's tokens are read."""

    stops: tuple[str, ...] = ()
    """The strings that end it."""
    stop_tokens: Container[int] = frozenset()
    """The tokens that end it because the client says so."""
    min_tokens: int = 0
    """A stop string that is complete within so many tokens does not end it."""
    keep_stop: bool = False
    """Whether the stop string or token stays in the text."""
    parser: Callable[[], Parser] = Plain
    """Returns a fresh parser."""
    shown: Container[int] = frozenset()
    """Special tokens that are part of the text."""
    called: str = "tool_calls"
    """The finish reason after a call, if the model ended by itself."""
    reports: bool = False
    """Whether pieces carry their tokens."""
    echo: str = ""
    """Text that comes first."""
    prompt: tuple[int, ...] = ()
    """The tokens that are reported with the echo."""
    silent: bool = False
    """Whether no drawn token is the client's, so that the choice ends with its echo."""


class Output:
    """All choices of a request: the same number for each of its groups, one group per prompt, in the prompts' order.

    completion_tokens: tokens that belong to the answer so far, including stop tokens. A choice that a stop string ended
    counts up to the token that completed the string; what the core drew beyond that is not the client's. cached_tokens:
    how many of all prompts' tokens were found computed. prompt_logprobs: by prompt, if they were asked for.
    """

    def __init__(self, groups: Sequence[int], table: TokenBytes, manners: Sequence[Sequence[Manner]]) -> None:
        """`manners` has one entry for each group, with one entry for each of its choices."""
        self._table = table
        self._first: dict[int, int] = {}  # the index of each group's choice 0
        self._manners: dict[int, Manner] = {}  # of each group's choice 0
        self._choices: list[_Choice] = []
        for group, of_group in zip(groups, manners, strict=True):
            self._first[group] = len(self._choices)
            self._manners[group] = of_group[0]
            self._choices += [_Choice(table, manner) for manner in of_group]
        self._width = len(self._choices) // len(groups)
        self._running = set(range(len(self._choices)))
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.prompt_logprobs: list[Sequence[Logprobs | None] | None] = [None] * len(groups)

    @property
    def choices(self) -> int:
        """The number of choices of all groups together."""
        return len(self._choices)

    @property
    def finished(self) -> bool:
        """Whether every choice has its finish reason."""
        return not self._running

    @property
    def reasoning_tokens(self) -> int:
        """How many of the completion's tokens are reasoning."""
        return sum([choice.reasoned for choice in self._choices])

    def take(self, events: Sequence[Started | TokenDrawn]) -> Taken:
        """Process events in the order in which they came; ignore tokens of finished choices."""
        touched: dict[int, list[Part]] = {}
        cut: list[tuple[int, int]] = []
        for event in events:
            if isinstance(event, Started):
                self._begin(event)
                continue
            index = self._first[event.group] + event.choice
            if index not in self._running:
                continue
            choice = self._choices[index]
            self.completion_tokens += choice.counts
            touched.setdefault(index, []).extend(choice.take(event))
            if choice.finish is not None:
                self._running.discard(index)
                if event.finish is None:
                    cut.append((event.group, event.choice))
        parts_of = [(index, parts, self._choices[index]) for index, parts in sorted(touched.items())]
        pieces = [
            Piece(index, tuple(parts), choice.finish, choice.report(), choice.stop_reason)
            for index, parts, choice in parts_of
            if parts or choice.finish is not None
        ]
        return Taken(tuple(pieces), tuple(cut))

    def _begin(self, started: Started) -> None:
        first, logprobs = self._first[started.group], started.prompt_logprobs
        self.cached_tokens += started.cached_tokens
        self.prompt_logprobs[first // self._width] = logprobs
        if logprobs is not None and (manner := self._manners[started.group]).prompt:
            echoed = _echoed(self._table, manner, logprobs)  # shared by all choices of the prompt
            for choice in self._choices[first : first + self._width]:
                choice.report_echo(echoed)


class _Choice:
    """One choice's pipeline from tokens to parts: detokenizer, stop strings, parser."""

    __slots__ = (
        "_called",
        "_detokenizer",
        "_echo",
        "_held",
        "_held_text",
        "_last",
        "_length",
        "_manner",
        "_parser",
        "_scanner",
        "_taken",
        "_unreported",
        "finish",
        "reasoned",
        "stop_reason",
    )

    def __init__(self, table: TokenBytes, manner: Manner) -> None:
        self._manner = manner
        self._detokenizer = Detokenizer(table, manner.shown)
        self._scanner = StopScanner(manner.stops, keep=manner.keep_stop)
        self._parser = manner.parser()
        self._echo = manner.echo
        self._length = len(manner.echo)
        self._taken = 0
        self._held: list[ReportedToken] = []  # tokens that may still show something
        self._held_text = ""
        self._unreported: list[ReportedToken] = []
        self._last: type[Part] | None = None  # the kind of the last part
        self._called = False
        self.reasoned = 0
        self.finish: str | None = None
        self.stop_reason: str | int | None = None

    @property
    def counts(self) -> int:
        """How many completion tokens a drawn token counts as."""
        return 0 if self._manner.silent else 1

    def take(self, drawn: TokenDrawn) -> list[Part]:
        """Return the parts that may be shown now.

        A stop token ends the choice, and is not part of the text unless it is kept.
        """
        echo: list[Part] = [Content(self._echo)] if self._echo else []
        self._echo = ""
        if self._manner.silent:
            self.finish = "length"
            return echo
        self._taken += 1
        offset, before = self._length, self._last
        parts = self._parse(self._scan(drawn.token, drawn.finish))
        if self._manner.reports:
            self._held.append(ReportedToken(drawn.token, drawn.logprobs, offset))
            if parts or self.finish is not None:
                self._release(parts, goes_on=before is Content)
        return echo + parts if echo else parts

    def report(self) -> tuple[ReportedToken, ...]:
        """Return the tokens that are to be reported with the parts so far and have not been yet."""
        reported, self._unreported = tuple(self._unreported), []
        return reported

    def report_echo(self, echoed: Iterable[ReportedToken]) -> None:
        """Report the prompt's tokens with the echo."""
        self._unreported += echoed

    def _release(self, parts: Sequence[Part], *, goes_on: bool) -> None:
        """Let the held tokens be reported with these parts. goes_on: the part before these was content."""
        content = "".join([part.text for part in parts if isinstance(part, Content)])
        unsaid = 0 if goes_on and (content or not parts) else len(self._held)
        if content and not goes_on:  # marks may stand before it
            begins = self._held[0].offset + max(self._held_text.rfind(content), 0)
            ends = [one.offset for one in self._held[1:]] + [self._length]
            unsaid = sum(one.offset < begins and end <= begins for one, end in zip(self._held, ends, strict=True))
        self._unreported += [replace(one, said=False) for one in self._held[:unsaid]] + self._held[unsaid:]
        self._held, self._held_text = [], ""

    def _scan(self, token: int, finish: str | None) -> str:
        """Return the token's text, without what a possible stop string holds back; determine whether the
        choice ends.
        """
        hidden = finish == "stop" and not self._manner.keep_stop
        text = "" if hidden else self._detokenizer.feed(token)
        if finish is not None:
            text += self._detokenizer.flush()
        self._length += len(text)
        if self._manner.reports:
            self._held_text += text
        text = self._scanner.feed(text, ends=self._taken > self._manner.min_tokens)
        if self._scanner.matched is not None:
            self.finish, self.stop_reason = "stop", self._scanner.matched
        elif finish is not None:
            text += self._scanner.flush()
            self.finish = finish
            if finish == "stop" and token in self._manner.stop_tokens:
                self.stop_reason = token
        return text

    def _parse(self, text: str) -> list[Part]:
        """Return the parts of a token's text; at the end also the rest, with the finish reason changed if the answer is
        a call.
        """
        parts = self._parser.feed(text) if text else []
        if self.finish is not None:
            parts = parts + self._parser.finish()
        reasoned = self._last is Reasoning if not parts else False
        for part in parts:
            self._last = type(part)
            reasoned |= self._last is Reasoning
            self._called |= self._last is ToolStart
        self.reasoned += reasoned
        if self._called and self.finish == "stop" and self._scanner.matched is None:
            self.finish = self._manner.called
        return parts


def _echoed(table: TokenBytes, manner: Manner, logprobs: Sequence[Logprobs | None]) -> tuple[ReportedToken, ...]:
    """Return the prompt's tokens as they are reported with the echo."""
    tokens = zip(manner.prompt, logprobs, _places(table, manner.prompt, manner.echo), strict=True)
    return tuple([ReportedToken(token, one, place, echoed=True) for token, one, place in tokens])


_NEAR = 8
"""A vocabulary may lack so many characters in a row, and the tokens behind them still get the offsets of
their texts.
"""


def _places(table: TokenBytes, prompt: Sequence[int], echo: str) -> Iterator[int]:
    """Yield the offset in the echo of each token's text, in characters; of a special token's only if the client wrote
    it.

    A token without a text of its own has the offset of the next one that has one. A space that the vocabulary puts
    before a text is not part of the echo; neither are the marks for characters that the vocabulary lacks.
    """
    detokenizer, place = Detokenizer(table), 0
    for token in prompt:
        text, special = detokenizer.feed(token), table.special.get(token, b"").decode(errors="replace")
        if special and echo.startswith(special, place):
            text = special
        elif not place and not echo.startswith(text):
            text = text.removeprefix(" ")
        if text and not echo.startswith(text, place):
            text = text.lstrip("\ufffd")
            place = max(echo.find(text, place, place + len(text) + _NEAR), place)
        yield min(place, len(echo))
        place += len(text)

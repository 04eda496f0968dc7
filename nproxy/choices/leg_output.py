"""What Merge keeps: one LegOutput per leg, one Choice per index that the client is promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.leg import Leg
from nproxy.choices.lessons import Lack
from nproxy.choices.offsets import TextOffsets
from nproxy.choices.reading import LegFault
from nproxy.choices.records import Repeat, SentRecord
from nproxy.choices.reported_usage import ReportedUsage
from nproxy.openai.chunks import UpstreamChoice
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.rewriter import ListeningRewriter, Rewriter
from nproxy.openai.tools import ToolCalls
from nproxy.openai.usage import LegUsage, Usage

_WHOSE = "The upstream returned fewer choices than requested, and it is unclear which prompts they belong to."


@dataclass(slots=True)
class Choice:
    """One choice of the client's answer, however many legs it takes to bring it."""

    index: int
    began: bool = False
    """Something of it has come."""
    finished: bool = False
    """Its finish has come. In a stream, nothing of this index is taken any more."""
    in_messages: bool = False
    """The stream says it in messages, in place of deltas."""
    overrun: bool = False
    """More came behind its finish in a stream, and was dropped."""
    finish_reason: str | None = None
    """Also None if a whole body named no reason."""
    counted: bool = False
    """That it is finished was told once: what finished it then was of no use."""
    lost: ApiError | None = None
    """Why it will never finish; set if the client still gets the other choices."""
    tools: ToolCalls | None = None
    """None until it is needed."""
    offsets: TextOffsets | None = None
    """None until it is needed."""
    pieces: list[UpstreamChoice] = field(default_factory=list)
    """What a whole answer is folded from; empty in a stream, and once the choice is written."""
    written: bytes | None = None
    """What a whole answer shows of it, as `Wire.choice` writes it; None until it is written."""
    sent: SentRecord | None = None
    """What the client has been sent of it, if another call may continue from there."""
    repeat: Repeat | None = None
    """Compares what such a call repeats with what the client has; None if nothing is repeated."""

    @property
    def kept(self) -> bool:
        """Whether it stays as it is if another call is made for it; otherwise it begins anew with that call."""
        return self.finished or bool(self.sent)

    def continue_with_another_call(self) -> None:
        """Prepare for what another call says of it."""
        if self.sent is not None and not self.finished:
            self.tools = None  # the next call numbers and names its tool calls anew
            self.repeat = self.sent.again()

    def mended(self, piece: UpstreamChoice, *, chat: bool, all_seen: bool) -> UpstreamChoice | None:
        """Return what a chunk says, with tool calls counted from 0 and named once, and with text offsets that run on.

        Offsets are mended only if `all_seen`: every text of the choice passes here. If the call repeats what the client
        has, only what is new is returned; None for nothing. Raises LegFault if it says something else.
        """
        if chat and ("tool_calls" in piece.delta or "function_call" in piece.delta):
            if self.tools is None:
                self.tools = ToolCalls()
            piece = replace(piece, delta=self.tools.mend_delta(piece.delta))
        if self.repeat is not None:
            rest = self.repeat.rest(piece)
            if self.repeat.over:
                self.repeat = None
            if rest is None:
                return None
            piece = rest
        if chat or not all_seen:
            return piece
        if self.offsets is None:
            self.offsets = TextOffsets()
        logprobs = self.offsets.mend(piece.logprobs, piece.delta.get("text"))
        return piece if logprobs is piece.logprobs else replace(piece, logprobs=logprobs)


@dataclass(slots=True)
class LegOutput:
    """What one leg has sent: its part of the merge."""

    leg: Leg
    choices: list[Choice]
    """By the upstream's index."""
    prompt: int | None
    """The position of the one prompt that it answers for; None if it answers for all."""
    reported: ReportedUsage
    """Its usage."""
    rewriter: Rewriter | None = None
    """None until there is something to learn."""
    again: bool = False
    """An earlier call of this leg has streamed."""
    spoke: bool = False
    """Something of an answer has come."""
    streamed: bool = False
    """The answer came as events."""
    long: bool = False
    """The answer came as a body of which the parsed value is not to be kept."""
    pieces: int = 0
    """How many pieces of choices have come in events: at least so many tokens were computed."""
    generated: bool = False
    """Something other than a role has come, in this call or in an earlier one."""
    done: bool = False
    """`[DONE]` or a whole body has come. Nothing counts after it."""
    surplus: bool = False
    """The upstream sent more choices than it was asked for."""
    brought: int = 0
    """How many choices it had brought when it ended; 0 if it failed."""
    answered: int = 1
    """To how many prompts these belong."""
    finished_here: frozenset[int] | None = None
    """The upstream's indices of the choices that it finished, if other legs go on with the rest; else None."""
    fingerprint: str | None = None
    """The first that came."""
    top: dict[str, JSON] = field(default_factory=dict)
    """Unknown top-level keys, for a whole answer."""
    beside_usage: Mapping[str, JSON] | None = None
    """Unknown top-level keys of the last usage chunk; None if there was none."""

    @classmethod
    def begun(cls, leg: Leg, choices: list[Choice], cut: LegOutput | None) -> LegOutput:
        """Return the output of a call that is to bring these choices. cut: that of the leg's previous call, if any."""
        output = cls(leg, choices, leg.prompt, ReportedUsage(leg.width, len(choices)))
        if cut is not None:
            output.again, output.generated = cut.again or cut.streamed, cut.generated
            finished = (index for index, choice in enumerate(choices) if choice.finished)
            output.reported.continue_from(cut.reported, finished)
        return output

    def taught(self, dialect: Dialect) -> Rewriter:
        """Return the rewriter, for a chunk that may teach it something."""
        if self.rewriter is None:
            self.rewriter = _rewriter(dialect, self.choices)
        return self.rewriter

    def forget(self, index: int | None = None) -> None:
        """Make the rewriter forget what it learned of this upstream index, or everything."""
        if self.rewriter is not None:
            self.rewriter.forget(index)

    @property
    def whole(self) -> bool:
        """Whether every choice that this leg answers for is finished."""
        for choice in self.choices:  # noqa: SIM110 - most have one, and a generator costs more than it
            if not choice.finished:
                return False
        return True

    @property
    def lost(self) -> bool:
        """Whether all choices of this leg are lost."""
        return all(choice.lost is not None for choice in self.choices)

    def lacks(self) -> list[Lack]:
        """Return what the stream shows to be missing from the upstream's usage, which it was asked for."""
        return self.reported.lacks() if self.streamed else []

    @property
    def shares_choices(self) -> bool:
        """Whether an earlier call of this leg finished some of its choices, or other legs go on with some."""
        return self.finished_here is not None or bool(self.reported.before)

    @property
    def said_all(self) -> bool:
        """Whether it sent `[DONE]` or a whole body, and nothing of it is missing."""
        return self.done and self.whole

    @property
    def broke_off(self) -> bool:
        """Whether it is a stream that sent `[DONE]` and finished none of its choices."""
        return self.streamed and self.done and not any(choice.finished for choice in self.choices)

    @property
    def broke_off_in_part(self) -> bool:
        """Whether it is a stream that sent `[DONE]` and finished only some of its choices."""
        return self.streamed and self.done and 0 < len(self.unfinished) < len(self.choices)

    @property
    def unfinished(self) -> list[Choice]:
        """The choices that are not finished."""
        return [choice for choice in self.choices if not choice.finished]

    @property
    def unplaced(self) -> bool:
        """Whether it brought only some choices of several prompts, and these whole: it is unclear whose they are."""
        began = [choice.finished for choice in self.choices if choice.began]
        return len(self.choices) > self.leg.width > 1 and 0 < len(began) < len(self.choices) and all(began)

    def end(self) -> list[int]:
        """The answer is over: return the client indices that it was to bring and did not begin. Other legs bring them.

        Raises LegFault if a choice began and did not finish, if no choice began, or if it is unclear which of several
        prompts the choices belong to.
        """
        if not self.spoke:
            raise LegFault(Failure(FailureKind.CUT, "The upstream's answer was empty."))
        missing, broken, count = [], False, len(self.choices)
        for choice in self.choices:
            if not choice.began:
                missing.append(choice.index)
            elif not choice.finished:
                broken = True
        if missing and len(missing) == count:
            raise LegFault(Failure(FailureKind.SHORT, "The upstream's answer contains no choices."))
        if broken:
            raise LegFault(Failure(FailureKind.CUT, "The upstream's answer ended before it was complete."))
        if count > self.leg.width:
            if self.unplaced:
                raise LegFault(Failure(FailureKind.SHORT, _WHOSE))
            self._note_prompt()
        self.brought = count - len(missing)
        return missing

    def _note_prompt(self) -> None:
        """Note how many prompts were answered, and which if it was one: some servers take only the first of a list."""
        answered = {place // self.leg.width for place, choice in enumerate(self.choices) if choice.began}
        self.answered = len(answered)
        if self.answered == 1:
            (self.prompt,) = answered

    def usage_of(self, choice: Choice) -> Usage | None:
        """Return the last usage that came with this choice."""
        index = next(index for index, own in enumerate(self.choices) if own is choice)
        return self.reported.by_choice.get(index)

    def usage(self) -> LegUsage:
        """Return this leg's tokens, as far as they were reported: of all its prompts, if it carries several."""
        return LegUsage(self.prompt, self.reported.total(self.whole))

    def usage_for_client(self, reported: LegUsage) -> LegUsage:
        """Return what the client is told of this leg's tokens, of which it reported `reported`."""
        prompt, total = reported
        if total is None:
            return reported
        return LegUsage(prompt, self.reported.total_for_client(total, self.finished_here, whole=self.whole))


def _rewriter(dialect: Dialect, choices: Sequence[Choice]) -> Rewriter:
    """Return the rewriter of a leg that brings these choices. It records what it passes on if they have records.

    Either all of them have one, or none.
    """
    records = [choice.sent for choice in choices if choice.sent is not None]
    if not records:
        return Rewriter(dialect)
    return ListeningRewriter(dialect, lambda index, key: records[index].hear(key))

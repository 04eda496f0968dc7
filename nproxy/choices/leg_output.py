"""What Merge keeps: one LegOutput per leg, one Choice per index the client is promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.leg import Leg
from nproxy.choices.lessons import Lack
from nproxy.choices.offsets import TextOffsets
from nproxy.choices.reading import LegFault
from nproxy.choices.records import Record, Repeat
from nproxy.openai.chunks import UpstreamChoice, UpstreamChunk
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.rewriter import Overheard, Rewriter
from nproxy.openai.tools import ToolCalls
from nproxy.openai.usage import LegUsage, Usage, merge, within_leg

_WHOSE = "The upstream gave fewer choices than it was asked for, and of several prompts it is not clear whose."


@dataclass(slots=True)
class Choice:
    """One choice of the client's answer, however many legs it takes to bring it.

    began: something of it has come. finished: nothing of this index is taken afterwards. finish_reason: why; None too
    where a whole body named no reason. lost: why it will never finish, where the client gets the others all the same.
    pieces: what a whole answer is folded from; empty in a stream. sent: what the client has of it, where another call
    may go on behind that. repeat: what of such a call it has already. tools, offsets: None until they are needed.
    """

    index: int
    began: bool = False
    finished: bool = False
    finish_reason: str | None = None
    lost: ApiError | None = None
    tools: ToolCalls | None = None
    offsets: TextOffsets | None = None
    pieces: list[UpstreamChoice] = field(default_factory=list)
    sent: Record | None = None
    repeat: Repeat | None = None

    def goes_on(self) -> bool:
        """Prepare for another call; whether it goes on with this choice, or the choice begins anew."""
        if self.finished:
            return True
        if not self.sent:
            return False
        self.tools = None  # the call numbers and names them anew
        self.repeat = self.sent.again()
        return True

    def mended(self, said: UpstreamChoice, *, chat: bool, all_seen: bool) -> UpstreamChoice | None:
        """The same, with tool calls counted from 0 and named once, and text offsets running on where every text of the
        choice is seen here.

        Of a call that repeats what the client has, what is new; None for nothing. Raises LegFault where it says
        something else.
        """
        calls = said.delta.get("tool_calls")
        if chat and isinstance(calls, list):
            if self.tools is None:
                self.tools = ToolCalls()
            said = replace(said, delta={**said.delta, "tool_calls": self.tools.mend(calls)})
        if self.repeat is not None:
            rest = self.repeat.rest(said)
            if self.repeat.over:
                self.repeat = None
            if rest is None:
                return None
            said = rest
        if chat or not all_seen:
            return said
        if self.offsets is None:
            self.offsets = TextOffsets()
        logprobs = self.offsets.mend(said.logprobs, said.delta.get("text"))
        return said if logprobs is said.logprobs else replace(said, logprobs=logprobs)


@dataclass(slots=True)
class LegOutput:
    """One leg's part of the merge. choices: by the upstream's index.

    rewriter: None until there is something to learn. again: an earlier call of this leg has streamed. spoke: something
    of an answer has come. streamed: as events. generated: some of it, or of an earlier call's, was more than a role.
    tails: usage of chunks without choices. by_choice: the last usage that came with a choice. shared: the last usage of
    a stream that tells it beside several choices at once, and so of all. top: unknown top-level keys, for a whole
    answer. beside_usage: those of the last usage chunk. done: `[DONE]` or a whole body has come; nothing counts after
    it. prompt: the one that it answers for, None where it is all.
    """

    leg: Leg
    choices: list[Choice]
    prompt: int | None
    rewriter: Rewriter | None = None
    again: bool = False
    spoke: bool = False
    streamed: bool = False
    generated: bool = False
    done: bool = False
    surplus: bool = False
    tails: list[Usage] = field(default_factory=list)
    by_choice: dict[int, Usage] = field(default_factory=dict)
    shared: Usage | None = None
    fingerprint: str | None = None
    top: Mapping[str, JSON] = field(default_factory=dict)
    beside_usage: Mapping[str, JSON] = field(default_factory=dict)

    @classmethod
    def begun(cls, leg: Leg, choices: list[Choice], cut: LegOutput | None) -> LegOutput:
        """A call that is to bring these choices. cut: the leg's call before, if any."""
        output = cls(leg, choices, leg.prompt)
        if cut is not None:
            output.again, output.generated = cut.again or cut.streamed, cut.generated
        return output

    def taught(self, dialect: Dialect) -> Rewriter:
        """The rewriter, for a chunk that may teach it something."""
        if self.rewriter is None:
            self.rewriter = _rewriter(dialect, self.choices)
        return self.rewriter

    def forget(self, index: int | None = None) -> None:
        """Have the rewriter forget what it learned of this upstream index, or everything."""
        if self.rewriter is not None:
            self.rewriter.forget(index)

    @property
    def whole(self) -> bool:
        """Whether every choice that this leg answers for is finished."""
        return all(choice.finished for choice in self.choices)

    @property
    def lost(self) -> bool:
        """Whether nothing of this leg reaches the client as a choice."""
        return all(choice.lost is not None for choice in self.choices)

    def lacks(self) -> list[Lack]:
        """What the stream shows of the upstream's way with usage, which it was asked for."""
        if not self.streamed:
            return []
        if not self.tails and not self.by_choice and self.shared is None:
            return ["stream_usage"]
        each = self.leg.width > 1 and len(self.tails) == len(self.choices)
        return ["json_usage"] if each else []

    @property
    def said_all(self) -> bool:
        """Whether it said `[DONE]`, or gave its whole body, and nothing of it is missing."""
        return self.done and self.whole

    @property
    def broke_off(self) -> bool:
        """Whether it said `[DONE]` in a stream that finished none of its choices."""
        return self.streamed and self.done and not any(choice.finished for choice in self.choices)

    @property
    def broke_off_in_part(self) -> bool:
        """Whether it said `[DONE]` in a stream that finished some of its choices, and others not."""
        return self.streamed and self.done and 0 < len(self.unfinished) < len(self.choices)

    @property
    def unfinished(self) -> list[Choice]:
        """The choices that it has not finished."""
        return [choice for choice in self.choices if not choice.finished]

    def end(self) -> list[int]:
        """The answer is over: give the client indices that it was to bring and did not begin; other legs bring them.

        Raises LegFault if a choice began and has no finish, or if nothing came at all.
        """
        if not self.spoke:
            raise LegFault(Failure(FailureKind.CUT, "The upstream's answer was empty."))
        missing, broken = [], False
        for choice in self.choices:
            if not choice.began:
                missing.append(choice.index)
            elif not choice.finished:
                broken = True
        if len(missing) == len(self.choices):
            raise LegFault(Failure(FailureKind.SHORT, "The upstream's answer holds no choices."))
        if broken:
            raise LegFault(Failure(FailureKind.CUT, "The upstream's answer ended before it was complete."))
        if len(self.choices) > self.leg.width:
            if missing and self.leg.width > 1:
                raise LegFault(Failure(FailureKind.SHORT, _WHOSE))
            self._note_prompt()
        return missing

    def _note_prompt(self) -> None:
        """Some servers read only the first prompt of a list: then usage is of that one."""
        answered = {place // self.leg.width for place, choice in enumerate(self.choices) if choice.began}
        if len(answered) == 1:
            (self.prompt,) = answered

    def count(self, chunk: UpstreamChunk, usage: Usage) -> None:
        """Note the usage that a chunk tells."""
        if not chunk.choices or self.done:
            self.tails.append(usage)
        elif self.shared is not None or len(chunk.choices) > 1:
            self.shared = usage
        else:
            promised = range(len(self.choices))
            self.by_choice.update((said.index, usage) for said in chunk.choices if said.index in promised)

    def told(self, choice: Choice) -> Usage | None:
        """The last usage that came with this choice."""
        index = next(index for index, own in enumerate(self.choices) if own is choice)
        return self.by_choice.get(index)

    def usage(self) -> LegUsage:
        """This leg's tokens, as far as it has told; where it carries several prompts, those of all of them."""
        width, choices = self.leg.width, len(self.choices)
        prompts = choices // width
        tails = self.tails or ([] if self.shared is None else [self.shared])
        usage = within_leg(tails, self.by_choice, choices, fewer_are_parts=prompts > 1 or not self.whole)
        if prompts > 1 and usage is not None:
            if len(tails) == choices:  # one per choice, and so `width` times each prompt
                usage = replace(usage, prompt=sum(tail.prompt for tail in tails) // width)
            elif not tails:
                usage = merge(map(self._of_prompt, range(prompts))).usage
        return LegUsage(self.prompt, usage)

    def _of_prompt(self, prompt: int) -> LegUsage:
        told = {index: usage for index, usage in self.by_choice.items() if index // self.leg.width == prompt}
        return LegUsage(prompt, within_leg([], told))


def _rewriter(dialect: Dialect, choices: Sequence[Choice]) -> Rewriter:
    """The rewriter of a leg that brings these; what it passes on is recorded where they are: all of them, or none."""
    records = [choice.sent for choice in choices if choice.sent is not None]
    if not records:
        return Rewriter(dialect)
    return Overheard(dialect, lambda index, key: records[index].hear(key))

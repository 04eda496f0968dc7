"""What Merge keeps: one Strand per leg, one Choice per index the client is promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nproxy.choices.leg import Leg
from nproxy.choices.lessons import Lack
from nproxy.choices.offsets import TextOffsets
from nproxy.openai.chunks import UpstreamChoice
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.rewriter import Rewriter
from nproxy.openai.tools import ToolCalls
from nproxy.openai.usage import LegUsage, Usage, merge, within_leg


@dataclass(slots=True)
class Choice:
    """One choice of the client's answer, however many legs it takes to bring it.

    began: something of it has come. finish_reason: set once; nothing of this index is taken afterwards. lost: why it
    will never finish, where the client gets the others all the same. pieces: what a whole answer is folded from; empty
    in a stream. strand: the leg that brings it.
    """

    index: int
    began: bool = False
    finished: bool = False
    finish_reason: str | None = None
    lost: ApiError | None = None
    tools: ToolCalls = field(default_factory=ToolCalls)
    offsets: TextOffsets = field(default_factory=TextOffsets)
    pieces: list[UpstreamChoice] = field(default_factory=list)
    strand: Strand | None = None


@dataclass(slots=True)
class Strand:
    """One leg's part of the merge. choices: by the upstream's index.

    spoke: something of an answer has come. streamed: as events. generated: some of it was more than a role. tails:
    usage of chunks without choices. by_choice: the last usage that came with a choice. top: unknown top-level keys.
    done: `[DONE]` or a whole body has come; nothing counts after it.
    """

    leg: Leg
    choices: list[Choice]
    rewriter: Rewriter
    spoke: bool = False
    streamed: bool = False
    generated: bool = False
    done: bool = False
    surplus: bool = False
    tails: list[Usage] = field(default_factory=list)
    by_choice: dict[int, Usage] = field(default_factory=dict)
    fingerprint: str | None = None
    top: Mapping[str, JSON] = field(default_factory=dict)

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
        if not self.tails and not self.by_choice:
            return ["stream_usage"]
        each = self.leg.width > 1 and len(self.tails) == len(self.choices)
        return ["json_usage"] if each else []

    def usage(self) -> LegUsage:
        """This leg's tokens, as far as it has told; where it carries several prompts, those of all of them."""
        width = self.leg.width
        prompts = len(self.choices) // width
        usage = within_leg(self.tails, self.by_choice, len(self.choices))
        if prompts > 1 and usage is not None:
            if len(self.tails) == len(self.choices):  # one per choice, and so `width` times each prompt
                usage = replace(usage, prompt=sum(tail.prompt for tail in self.tails) // width)
            elif not self.tails:
                usage = merge(map(self._of_prompt, range(prompts))).usage
        return LegUsage(self.leg.prompt, usage)

    def _of_prompt(self, prompt: int) -> LegUsage:
        told = {index: usage for index, usage in self.by_choice.items() if index // self.leg.width == prompt}
        return LegUsage(prompt, within_leg([], told))

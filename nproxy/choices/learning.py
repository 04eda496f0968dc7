"""What one request teaches while it runs: by its answers, and by refusals.

A refusal alone teaches nothing: only the success that follows it does.
"""

from __future__ import annotations

from collections.abc import Collection

from nproxy.choices.capability import Capability
from nproxy.choices.compose import asked_for_usage
from nproxy.choices.leg import Leg
from nproxy.choices.leg_output import LegOutput
from nproxy.choices.lessons import FieldRefused, Lacks, Lesson, NativeWidth
from nproxy.openai.requests import Request


def width_brought(leg: Leg, missing: Collection[int], n: int, prompts: int) -> int:
    """Return how many choices of one prompt the leg brought, for the prompt with most. missing: client indices."""
    if not missing:
        return leg.width
    brought: dict[int, int] = {}
    for index in set(leg.client_indices(n, prompts)) - set(missing):
        brought[index // n] = brought.get(index // n, 0) + 1
    return max(brought.values(), default=0)


def of_width(request: Request, capability: Capability, leg: Leg, got: int, *, streamed: bool) -> list[Lesson]:
    """Return what a leg that brought `got` choices of a prompt teaches about the upstream's width.

    If a stream brings one choice, and a call as wide was answered in full before, that says something about streams:
    LiteLLM writes the texts of all choices of a legacy completion under one index.
    """
    if leg.width == 1:
        return []
    seen = capability.width_seen
    if streamed and got == 1 and seen is not None and seen >= leg.width and not request.greedy:
        return [Lacks("stream_n")]
    unseen = capability.n_untested or (seen is not None and leg.width > seen)
    # Servers that support n may still give one choice at temperature 0.
    news = not request.greedy if got < leg.width else unseen
    return [NativeWidth(leg.width, got)] if news else []


def of_unfinished(request: Request, capability: Capability, output: LegOutput) -> list[Lesson]:
    """Return what an answer teaches that left some of its choices unfinished, or of which it is unclear whose they are.

    The latter casts doubt on the width.
    """
    if output.unplaced:
        return [] if request.greedy else [NativeWidth(output.leg.width, 1)]
    several = output.leg.width > 1 and capability.n_learned
    return [Lacks("stream_n")] if several and output.broke_off_in_part else []


def of_usage(request: Request, capability: Capability, output: LegOutput) -> list[Lesson]:
    """Return what a leg that came to its end teaches about how the upstream reports usage."""
    lacks = output.lacks()
    if not lacks or not asked_for_usage(request, capability, output.leg):
        return []
    known = {"stream_usage": capability.stream_usage, "json_usage": capability.json_usage}
    return [Lacks(what) for what in lacks if known.get(what)]


class Learning:
    """The refusals of one request that await their confirmation."""

    def __init__(self) -> None:
        self._unconfirmed: list[FieldRefused] = []
        self._replaced: list[tuple[Lesson, set[int]]] = []

    def left_out(self, lesson: FieldRefused) -> None:
        """Note that legs omit a field from now on. lesson: what their success teaches."""
        self._unconfirmed.append(lesson)

    def replaced(self, lesson: Lesson, stand_ins: set[int]) -> None:
        """Note that a refused leg was replaced by `stand_ins`, leg numbers. lesson: what the success of all teaches."""
        self._replaced.append((lesson, set(stand_ins)))

    def succeeded(self, leg: Leg) -> list[Lesson]:
        """A leg has ended well: return the lessons that this confirms."""
        lessons: list[Lesson] = [lesson for lesson in self._unconfirmed if lesson.field in leg.omit]
        self._unconfirmed = [lesson for lesson in self._unconfirmed if lesson.field not in leg.omit]
        for _, legs in self._replaced:
            legs.discard(leg.number)
        lessons += [lesson for lesson, legs in self._replaced if not legs]
        self._replaced = [(lesson, legs) for lesson, legs in self._replaced if legs]
        return lessons

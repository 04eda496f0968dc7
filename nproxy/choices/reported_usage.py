"""What one leg reports of its tokens: in chunks without choices, with its choices, or with its whole body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nproxy.choices.lessons import Lack
from nproxy.openai.usage import LegUsage, Usage, merge, within_leg


@dataclass(slots=True)
class ReportedUsage:
    """The usages that one leg has reported. Indices are the upstream's."""

    width: int
    """Choices per prompt."""
    choices: int
    """Choices that the leg is to bring, for all of its prompts."""
    counts_all: bool = False
    """Usage that comes with one choice counts all of them, too."""
    tails: list[Usage] = field(default_factory=list)
    """Usages of chunks without choices, and of a whole body."""
    by_choice: dict[int, Usage] = field(default_factory=dict)
    """The last usage that came with a choice, by its index."""
    shared: Usage | None = None
    """The last usage of a stream that reports it in chunks of several choices, and so for all of them."""
    before: Mapping[int, Usage] | None = None
    """What earlier calls of this leg reported of the choices that they finished, by their index; None without any."""

    def continue_from(self, cut: ReportedUsage, finished: Iterable[int]) -> None:
        """Note what the leg's previous call reported of the choices that are finished."""
        before = {index: cut.by_choice[index] for index in finished if index in cut.by_choice}
        self.before = before if cut.before is None else {**before, **cut.before}

    def note(self, usage: Usage, indices: Sequence[int]) -> None:
        """Note a usage that came in a chunk with these choices; none if it counts the whole leg."""
        if not indices:
            if self.tails and len(self.tails) > self.choices:
                self.tails.pop()  # so many are running totals, of which the last one counts
            self.tails.append(usage)
        elif self.shared is not None or len(indices) > 1 or (self.counts_all and self.choices > 1):
            self.shared = usage
        elif 0 <= indices[0] < self.choices:
            self.by_choice[indices[0]] = usage

    def lacks(self) -> list[Lack]:
        """Return what is missing from a stream that was asked for its usage."""
        if not self.tails and not self.by_choice and self.shared is None:
            return ["stream_usage"]
        return ["json_usage"] if self.width > 1 and len(self.tails) == self.choices else []

    def total(self, whole: bool) -> Usage | None:
        """Return the leg's tokens, as far as they were reported: of all its prompts, if it carries several.

        whole: every choice is finished, so no more parts come.
        """
        prompts = self.choices // self.width
        tails = self.tails or ([] if self.shared is None else [self.shared])
        usage = within_leg(tails, self.by_choice, self.choices, prompts > 1 or not whole)
        if prompts > 1 and usage is not None:
            if len(tails) == self.choices:  # one per choice, so each prompt is counted `width` times
                return replace(usage, prompt=sum(tail.prompt for tail in tails) // self.width)
            if not tails:
                return merge([self._of_prompt(prompt) for prompt in range(prompts)])[0]
        return usage

    def total_for_client(self, total: Usage, kept: frozenset[int] | None, *, whole: bool) -> Usage | None:
        """Return what the client is told of this leg's tokens, of which it reported `total`; None if that is unknown.

        Of a choice that an earlier call finished, that call's count is final; this one may be cut while it repeats it.
        kept: the choices that this leg finished, if other legs go on with the rest, which counts there. Then only the
        completions of these count here, if they were reported for each choice.
        """
        apart = not self.tails and self.shared is None
        if kept is not None:
            if not apart or not kept <= self.by_choice.keys():
                return None
            own = within_leg([], {index: self.by_choice[index] for index in kept})
            return own and replace(own, prompt=total.prompt)
        if apart and self.before:
            return replace(self, by_choice={**self.by_choice, **self.before}).total(whole)
        return total

    def _of_prompt(self, prompt: int) -> LegUsage:
        of_prompt = {index: usage for index, usage in self.by_choice.items() if index // self.width == prompt}
        return LegUsage(prompt, within_leg([], of_prompt))

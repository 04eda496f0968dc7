"""The leg: one upstream call made for one client request, and the only formula for its indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nproxy.openai.frozen import frozen


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a choice has said so far, from where its next call continues.

    tokens: its length: as the upstream reported it, else the number of pieces that came. flag: the call says in a field
    that it continues (`continue_final_message`).
    """

    text: str
    tokens: int
    flag: bool = False


@frozen
class Leg:
    """One upstream call. It carries `width` choices from `offset` on, for one prompt or for all."""

    number: int
    """Identifies the leg within its request (0, 1, 2 ... in order of opening). Never changes, retries included."""
    offset: int
    width: int
    prompt: int | None = None
    """The position of its one prompt in the client's list; None if it carries all of them."""
    scored: bool = False
    """It asks for log probabilities, by which the best choices are found."""
    warms: bool = False
    """Its siblings wait until it has computed the prompt, which is then in the upstream's cache. It is asked for as a
    stream, so that its first token can be seen."""
    seed: int | None = None
    """The seed on the wire; None if nproxy sets none."""
    omit: frozenset[str] = frozenset()
    """What the upstream refused: fields of the body, or `request_id`. The leg is sent without them."""
    prefix: Prefix | None = None
    """What its one choice has said in a call that was cut."""

    def seeded(self, seed: int) -> Leg:
        """Return the same leg with this seed: like `replace`, which takes several times as long."""
        number, offset, width, prompt = self.number, self.offset, self.width, self.prompt
        return Leg(number, offset, width, prompt, self.scored, self.warms, seed, self.omit, self.prefix)

    def client_index(self, upstream_index: int, n: int) -> int:
        """Map the upstream's choice index to the client's, for a request with `n` choices per prompt.

        This is all of the leg arithmetic: `(j // width) * n + offset + j % width`, and a leg that carries one prompt
        starts at `prompt * n`.
        """
        base = 0 if self.prompt is None else self.prompt * n
        return base + (upstream_index // self.width) * n + self.offset + upstream_index % self.width

    def client_indices(self, n: int, prompts: int) -> Sequence[int]:
        """Return all client indices that this leg answers for, in the upstream's order."""
        if self.prompt is not None or prompts == 1:  # those of one prompt are consecutive
            first = self.client_index(0, n)
            return range(first, first + self.width)
        return [self.client_index(j, n) for j in range(self.choices(prompts))]

    def choices(self, prompts: int) -> int:
        """Return how many choices this leg answers for, in a request with so many prompts."""
        return self.width * (prompts if self.prompt is None else 1)

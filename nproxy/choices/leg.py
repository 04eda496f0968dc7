"""The leg: one upstream call made for one client request, and the one formula of its indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a choice has said, where its call goes on from there.

    tokens: how many that was, as far as told, else as many as pieces came. flag: the call says so in a field.
    """

    text: str
    tokens: int
    flag: bool = False


class Leg(NamedTuple):  # one for each call: of what cannot change, a tuple is made fastest
    """One upstream call. It carries `width` choices from `offset` on, for one prompt or for all.

    `number` names the leg within its request (0, 1, 2 ... in order of opening) and never changes,
    retries included. `prompt` is the position of the one prompt it carries in the client's list, or
    None when it carries all of them. `seed` is what goes on the wire; None sends no seed of nproxy's.
    `omit` names what the upstream refused, fields of the body or `request_id`; the leg is sent without. `scored` asks
    for log probabilities, by which the best choices are found. `warms`: its siblings wait until it has computed the
    prompt, which the upstream then has in its cache; its first token is to be seen, so it is asked for as a stream.
    `prefix` is what its one choice has said in a call that was cut.
    """

    number: int
    offset: int
    width: int
    prompt: int | None = None
    seed: int | None = None
    omit: frozenset[str] = frozenset()
    scored: bool = False
    warms: bool = False
    prefix: Prefix | None = None

    def client_index(self, upstream_index: int, n: int) -> int:
        """Map the upstream's choice index to the client's, for a request with `n` choices per prompt.

        This is the whole of the leg arithmetic: `(j // width) * n + offset + j % width`, and a leg
        that carries one prompt starts at `prompt * n`.
        """
        base = 0 if self.prompt is None else self.prompt * n
        return base + (upstream_index // self.width) * n + self.offset + upstream_index % self.width

    def client_indices(self, n: int, prompts: int) -> list[int]:
        """All client indices that this leg answers for, in the upstream's order."""
        if self.prompt is not None or prompts == 1:  # those of one prompt are neighbours
            first = self.client_index(0, n)
            return [*range(first, first + self.width)]
        return [self.client_index(j, n) for j in range(self.choices(prompts))]

    def choices(self, prompts: int) -> int:
        """How many choices this leg answers for, in a request of so many prompts."""
        return self.width * (prompts if self.prompt is None else 1)

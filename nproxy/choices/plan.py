"""The plan: which upstream calls one client request becomes. Made once, before any call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Literal

from nproxy.choices.capability import Capability
from nproxy.choices.leg import Leg
from nproxy.choices.seeds import seeded
from nproxy.openai.errors import invalid_request
from nproxy.openai.frozen import frozen
from nproxy.openai.requests import Request

Mode = Literal["relay", "native", "fanout"]
Greedy = Literal["accept", "reject", "dedupe"]
"""What happens to several choices at temperature 0, which are all equal: each is computed, the request is refused, or
one is computed and copied."""
NO_LOGPROBS = "'best_of' needs log probabilities, which this model's server does not return."


@frozen
class Way:
    """How the choices of a request are made: what the client reads in `x-nproxy-mode` and `x-nproxy-legs`."""

    mode: Mode
    legs: int


@frozen
class Plan:
    """The legs of one request, in index order.

    way: how the choices are made, unless further legs are added. n: choices per prompt that the legs bring: the
    client's n, its best_of, or 1 if equal choices are computed once. Together the legs answer for every index from 0 to
    prompts x n - 1 exactly once.
    """

    way: Way
    legs: tuple[Leg, ...]
    n: int


def make_plan(
    request: Request,
    capability: Capability,
    draw: Callable[[], int],
    greedy: Greedy = "accept",
    *,
    replayed: bool = False,
) -> Plan:
    """Plan the upstream calls of one request.

    draw: returns a random seed from 0 to 2**31 - 1; called only if the client sent no seed and there are several legs,
    or a stream that may be replayed. greedy: the policy for several choices that will all be equal. replayed: a stream
    that is cut is called again, and must come out the same.
    Raises ApiError (status 400) if the request asks for something that this upstream cannot do and several legs cannot
    imitate.
    """
    n = _choices_to_bring(request, greedy) if request.drawn > 1 else 1
    legs = _legs(request, capability, n)
    if n > 1:
        _refuse_the_impossible(request, capability, n, len(legs))
    again = replayed and request.stream and not request.greedy
    given = request.seed if request.choice_params is None or capability.exact else own_seed(request, 0)
    if given is not None or len(legs) > 1 or again:
        legs = with_seeds(request, capability, draw, legs, set())
    return Plan(Way(_mode(request, capability, n, len(legs)), len(legs)), tuple(legs), n)


def _mode(request: Request, capability: Capability, n: int, legs: int) -> Mode:
    if legs > 1 or n < request.drawn:  # in the second case, nproxy copies the choices of one call
        return "fanout"
    return "relay" if n == 1 or (capability.exact and n == request.n) else "native"


def _choices_to_bring(request: Request, greedy: Greedy) -> int:
    """Return how many of several choices the legs must bring. Raises ApiError if equal choices are to be rejected."""
    if request.all_equal:
        if greedy == "reject":
            raise invalid_request(
                "At temperature 0 all choices are equal; this server supports only one choice there.",
                param="n" if request.n > 1 else "best_of",
                code="unsupported_value",
            )
        if greedy == "dedupe":
            return 1
    return request.drawn


def _legs(request: Request, capability: Capability, n: int) -> list[Leg]:
    """Return the legs without seeds, each as wide as the upstream allows, with all prompts if it takes lists."""
    if capability.exact or capability.n_untested or capability.native_width is None:
        width = n
    else:
        width = capability.native_width
    if not capability.stream_n and (request.stream or not capability.json_usage):
        width = 1
    if request.choice_params is not None and not capability.exact:
        width = 1  # only the built-in engine knows the field
    # If a call may return fewer choices than it asks for, an index does not tell which of several prompts it is for.
    # Servers that support n may still give one choice at temperature 0.
    unsure = width > 1 and not capability.exact and (capability.n_untested or request.greedy)
    split_prompts = request.prompts > 1 and (unsure or not capability.prompt_lists)
    carried = range(request.prompts) if split_prompts else (None,)
    offsets = range(0, n, width)
    warm = capability.prefix_cache and len(offsets) > 1  # only if a prompt has several legs
    scored = n > request.n
    legs: list[Leg] = []
    for prompt in carried:
        for offset in offsets:
            fits = min(width, n - offset)
            legs.append(Leg(len(legs), offset, fits, prompt, scored, warm and offset == 0))
    return legs


def own_seed(request: Request, offset: int) -> int | None:
    """Return the seed that the client gave for the choice at `offset` itself; None if it gave none for just that."""
    own = None if request.choice_params is None else request.choice_params[offset].get("seed")
    if isinstance(own, int):
        return own
    return request.seed if offset == 0 else None


def seed_given(request: Request) -> bool:
    """Whether the client gave a seed, for all choices or for single ones."""
    own = request.choice_params or ()
    return request.seed is not None or any("seed" in params for params in own)


def seed_sent(request: Request, capability: Capability) -> bool:
    """Whether calls carry seeds.

    If the client gave a seed for its only choice, it is sent even to an upstream that refuses seeds, so that the
    upstream reports the refusal itself: without the seed the answer would not be the one that was asked for.
    """
    if not capability.seed_refused:
        return capability.seed
    return capability.seed and request.drawn == 1 and own_seed(request, 0) is not None


def with_seeds(
    request: Request, capability: Capability, draw: Callable[[], int], legs: Sequence[Leg], taken: set[int]
) -> list[Leg]:
    """Return the same legs with the seeds that they carry on the wire, if calls carry any.

    A choice has the seed that the client gave for it alone, else the one that follows from the request's. taken: seeds
    of other legs, which are not drawn again.
    """
    if not seed_sent(request, capability):
        return [*legs]
    given = seeded(legs, request.seed, draw, taken)
    if request.choice_params is None or capability.exact:
        return given
    own = [own_seed(request, leg.offset) for leg in legs]
    return [leg if seed is None else leg.seeded(seed) for leg, seed in zip(given, own, strict=True)]


def _refuse_the_impossible(request: Request, capability: Capability, n: int, legs: int) -> None:
    """Raise ApiError for what the upstream cannot do for several choices."""
    if n > request.n and not capability.logprobs:
        raise invalid_request(NO_LOGPROBS, param="best_of")
    if legs > 1 and request.beam_search:
        raise invalid_request(
            "'use_beam_search' with n > 1 needs a server with native n: separate calls do not return the n best beams.",
            param="use_beam_search",
        )


def stretches(offsets: Collection[int], width: int) -> list[range]:
    """Cut offsets (in rising order) into stretches of consecutive ones, each at most `width` long."""
    cut: list[range] = []
    for offset in offsets:
        if cut and offset == cut[-1].stop and len(cut[-1]) < width:
            cut[-1] = range(cut[-1].start, offset + 1)
        else:
            cut.append(range(offset, offset + 1))
    return cut


def narrower(leg: Leg, width: int) -> list[Leg]:
    """Return legs of at most `width` for the choices of `leg`, which was refused. The caller numbers and seeds them."""
    return [
        replace(leg, offset=stretch.start, width=len(stretch))
        for stretch in stretches(range(leg.offset, leg.offset + leg.width), width)
    ]


def split_by_prompt(leg: Leg, prompts: int) -> list[Leg]:
    """Return one leg per prompt, for a leg that carries all prompts. The caller numbers and seeds them."""
    return [replace(leg, prompt=prompt) for prompt in range(prompts)]


def top_up(leg: Leg, missing: Sequence[int], n: int, prompts: int, width: int) -> list[Leg]:
    """Return legs of at most `width` for the client indices that `leg` did not bring (`missing`, in rising order).

    If a leg with all prompts misses the same offsets of each, the new legs carry all prompts too; otherwise one each.
    The caller numbers and seeds them.
    """
    by_prompt: dict[int, list[int]] = {}
    for index in missing:
        by_prompt.setdefault(index // n, []).append(index % n)
    rows = list(by_prompt.values())
    if leg.prompt is None and len(rows) == prompts and all(row == rows[0] for row in rows):
        return [replace(leg, offset=stretch.start, width=len(stretch)) for stretch in stretches(rows[0], width)]
    return [
        replace(leg, offset=stretch.start, width=len(stretch), prompt=prompt)
        for prompt, row in by_prompt.items()
        for stretch in stretches(row, width)
    ]

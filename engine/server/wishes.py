"""What a client wants of each choice: the request's own fields, and what `choice_params` changes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.messages import Sampling
from engine.server.fields import per_choice
from engine.server.members import Members
from nproxy.openai.choice_params import FIELD
from nproxy.openai.errors import invalid_request
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import wrong_type
from nproxy.openai.requests import ChatRequest, CompletionRequest

_LIMITS = ("max_tokens", "max_completion_tokens")

_MOST_STOPS = 16
_LONGEST_STOP = 256
_GREEDY_BELOW = 1e-5  # dividing logits by less overflows, and draws the likeliest token anyway
_ALL_TOKENS = 1 << 30  # more than any vocabulary holds: a top_k beyond it asks for nothing


@dataclass(frozen=True, slots=True)
class Wish:
    """What one choice is to be.

    seed: its own, where it has one apart from the request's; -1 asks for a random one. max_tokens: None leaves it
    to the dialect and the context. stops: strings that end it.
    """

    sampling: Sampling
    seed: int | None
    max_tokens: int | None
    stops: tuple[str, ...]


def read_wishes(request: ChatRequest | CompletionRequest) -> tuple[Wish, ...]:
    """Read the wishes of all drawn choices, the same for every prompt; raises ApiError 400 naming the field at fault.

    What an entry of `choice_params` names stands for its choice in place of the request's; what it does not name
    is the request's.
    """
    common = _wish(Members({**request.body.fields, "seed": None}))
    if request.choice_params is None:
        return (common,) * request.drawn
    return tuple(
        _overridden(request, own, f"{FIELD}.{number}.", common) for number, own in enumerate(request.choice_params)
    )


def _overridden(request: ChatRequest | CompletionRequest, own: Mapping[str, JSON], where: str, common: Wish) -> Wish:
    given = per_choice(request.dialect, own, where)
    if not given:
        return common
    replaced = {"seed"}
    if not given.keys().isdisjoint(_LIMITS):  # two names of one thing
        replaced |= set(_LIMITS)
    base = {name: value for name, value in request.body.fields.items() if name not in replaced}
    return _wish(Members({**base, **given}, where))


def _wish(members: Members) -> Wish:
    return Wish(
        sampling=_sampling(members),
        seed=members.integer("seed", -(2**63), 2**63 - 1),
        max_tokens=_max_tokens(members),
        stops=_stops(members),
    )


def _sampling(members: Members) -> Sampling:
    temperature = members.number("temperature", 1.0, 0.0, 2.0)
    top_p = members.number("top_p", 1.0, 0.0, 1.0)
    top_k = members.integer("top_k", -1) or 0
    if temperature < _GREEDY_BELOW:
        return Sampling(temperature=0.0)
    if top_p == 0:  # the smallest set of tokens is the likeliest one alone
        return Sampling(temperature=temperature, top_k=1)
    return Sampling(temperature=temperature, top_k=top_k if 0 < top_k < _ALL_TOKENS else 0, top_p=top_p)


def _max_tokens(members: Members) -> int | None:
    """`max_tokens` and its newer name; OpenAI refuses both together, here they only must not differ."""
    found = {value for name in _LIMITS if (value := members.integer(name, 1)) is not None}
    if len(found) > 1:
        names = " and ".join(f"'{members.called(name)}'" for name in _LIMITS)
        raise invalid_request(f"{names} differ.", param=members.called("max_tokens"))
    return next(iter(found), None)


def _stops(members: Members) -> tuple[str, ...]:
    value, name = members.get("stop"), members.called("stop")
    if isinstance(value, str):
        value = [value]
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type(name, "a string or an array of strings", value)
    texts = []
    for number, stop in enumerate(value):
        if not isinstance(stop, str):
            raise wrong_type(f"{name}.{number}", "a string", stop)
        if not 0 < len(stop) <= _LONGEST_STOP:
            raise invalid_request(f"A stop string has 1 to {_LONGEST_STOP} characters.", param=name)
        texts.append(stop)
    if len(texts) > _MOST_STOPS:
        raise invalid_request(f"'stop' takes up to {_MOST_STOPS} strings.", param=name)
    return tuple(texts)

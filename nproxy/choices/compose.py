"""The body of a leg: the request's shared bytes with a few fields of the leg spliced in."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial

from nproxy.choices.capability import Capability
from nproxy.choices.continuation import continued, encoded_prompt
from nproxy.choices.leg import Leg
from nproxy.choices.plan import seed_sent
from nproxy.openai.body import Encoded, Spliced, Values
from nproxy.openai.choice_params import FIELD, superseded
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.requests import CompletionRequest, Request

_USAGE: dict[str, JSON] = {"include_usage": True}
_WIDTHS = frozenset({"n_cmpl", "best_of"})  # nproxy chooses the best itself


def compose(request: Request, capability: Capability, leg: Leg) -> Spliced:
    """Return the JSON body of one leg. Legs of one request share all bytes but a few of their own.

    A request for one choice passes through as sent, except for the upstream's own name of the model, in a stream
    `stream_options.include_usage`, and a seed if the stream is replayed when it is cut.
    """
    put: Values = {}
    drop = {*leg.omit}
    if request.choice_params is not None and not (capability.exact and leg.width == request.n):
        _own_params(request, request.choice_params[leg.offset], leg.offset, put, drop)
    _width(request, capability, leg, put, drop)
    _seed(request, capability, leg, put, drop)
    _stream(request, capability, leg, put, drop)
    if leg.scored and not request.logprobs_asked:
        put["logprobs"] = True if request.dialect is Dialect.CHAT else 1
    one_prompt = leg.prompt is not None or not capability.prompt_lists
    if type(request) is CompletionRequest and request.listed and one_prompt:
        put["prompt"] = encoded_prompt(request, leg.prompt or 0)
    if leg.prefix is not None:
        put.update(continued(request, leg, leg.prefix) or {})
    if capability.model is not None and capability.model != request.model:
        put["model"] = capability.model
    for name in leg.omit:
        put.pop(name, None)
    return request.body.splice(put, drop)


def asked_as_stream(request: Request, capability: Capability, leg: Leg) -> bool:
    """Whether this leg is called as a stream.

    It is if the client asked for a stream. It is, too, if its JSON form would miscount usage, or if its siblings wait
    for its first token, unless that would cost the usage; but not if the upstream has refused a stream.
    """
    if request.stream or "stream" in leg.omit:
        return request.stream
    if not capability.json_usage and leg.choices(request.prompts) > 1:
        return True
    return leg.warms and capability.stream_usage and _takes_stream_options(request, capability, leg)


def asked_for_usage(request: Request, capability: Capability, leg: Leg) -> bool:
    """Whether this leg is called as a stream that ends with its usage."""
    return asked_as_stream(request, capability, leg) and _takes_stream_options(request, capability, leg)


def options_given(request: Request) -> bool:
    """Whether the client sent `stream_options` of its own. A server that refuses them refuses the client's request."""
    return isinstance(request.body.fields.get("stream_options"), dict)


def _takes_stream_options(request: Request, capability: Capability, leg: Leg) -> bool:
    return "stream_options" not in leg.omit and (capability.stream_options or options_given(request))


def _own_params(request: Request, own: Mapping[str, JSON], choice: int, put: Values, drop: set[str]) -> None:
    """Replace the request's sampling parameters by those of the leg's one choice."""
    drop.add(FIELD)
    for name in own:
        put[name] = _once(request, (FIELD, choice, name), partial(own.get, name))
    drop.update(superseded(own))


def _width(request: Request, capability: Capability, leg: Leg, put: Values, drop: set[str]) -> None:
    knows_n = capability.exact or capability.n_untested or capability.native_width != 1
    if request.n == request.drawn == 1 and knows_n:
        return
    drop |= _WIDTHS
    if leg.width == 1:
        drop.add("n")
    elif request.body.fields.get("n") != leg.width:
        put["n"] = leg.width


def _seed(request: Request, capability: Capability, leg: Leg, put: Values, drop: set[str]) -> None:
    if not seed_sent(request, capability):
        put.pop("seed", None)
        drop.add("seed")
    elif leg.seed is not None and leg.seed != request.seed:
        put["seed"] = leg.seed


def _stream(request: Request, capability: Capability, leg: Leg, put: Values, drop: set[str]) -> None:
    if not asked_as_stream(request, capability, leg):
        return
    if not request.stream:
        put["stream"] = True
    if not _takes_stream_options(request, capability, leg):
        drop.add("stream_options")
    elif not request.include_usage:
        sent = request.body.fields.get("stream_options")
        if isinstance(sent, dict) and sent:
            put["stream_options"] = _once(request, "stream_options", lambda: {**sent, **_USAGE})
        else:
            put["stream_options"] = _USAGE


def _once(request: Request, key: Hashable, value: Callable[[], JSON]) -> Encoded:
    """Return a value that several legs send, and that may be long; see Body.once."""
    return Encoded((request.body.once(key, value),))

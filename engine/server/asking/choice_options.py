"""The options of each choice: the request's own fields, and what `choice_params` changes in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.messages import Sampling
from engine.server.asking.fields import check_choice
from engine.server.asking.members import Members
from engine.server.asking.sampling import MOST_WORDS, Spell, read_bad_words, read_sampling, settle
from nproxy.openai.choice_params import FIELD
from nproxy.openai.errors import invalid_request
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import wrong_type
from nproxy.openai.requests import ChatRequest, CompletionRequest

_LIMITS = ("max_tokens", "max_completion_tokens")
_LONG = ("logit_bias", "allowed_token_ids", "bad_words", "stop")  # read once, however many choices inherit them

_MOST_STOPS = 16
_LONGEST_STOP = 256


@dataclass(frozen=True, slots=True)
class ChoiceOptions:
    """The options of one choice."""

    sampling: Sampling
    seed: int | None
    """Its own, if it has one apart from the request's; -1 asks for a random one."""
    max_tokens: int | None
    """None leaves it to the dialect and the context; 0 asks for the echo alone."""
    stops: tuple[str, ...]
    """Strings that end it."""
    bad_words: tuple[str, ...] = ()
    """Texts; `samplings` turns them into tokens."""
    where: str = field(default="", compare=False)
    """The prefix of the fields' names in error messages."""


def read_choice_options(request: ChatRequest | CompletionRequest) -> tuple[ChoiceOptions, ...]:
    """Return the options of all drawn choices, the same for every prompt; raise ApiError 400 naming the field at fault.

    The fields in an entry of `choice_params` replace the request's for that choice; all others are the request's.
    """
    common = _read(Members({**request.body.fields, "seed": None}), _least(request))
    if request.choice_params is None:
        return (common,) * request.drawn
    options = tuple(
        [_overridden(request, own, f"{FIELD}.{number}.", common) for number, own in enumerate(request.choice_params)]
    )
    if len({word for words in {one.bad_words for one in options} for word in words}) > MOST_WORDS:
        raise invalid_request(f"The choices have more than {MOST_WORDS} 'bad_words' in total.", param=FIELD)
    return options


def _overridden(
    request: ChatRequest | CompletionRequest, own: Mapping[str, JSON], where: str, common: ChoiceOptions
) -> ChoiceOptions:
    if not own:
        return common
    check_choice(request.dialect, own, where)
    replaced = {"seed"}
    if not own.keys().isdisjoint(_LIMITS):  # two names of one option
        replaced |= set(_LIMITS)
    base = {name: value for name, value in request.body.fields.items() if name not in replaced | set(_LONG)}
    read = _read(Members({**base, **own}, where), _least(request))
    inherited = replace(
        read.sampling,
        logit_bias=(read if "logit_bias" in own else common).sampling.logit_bias,
        allowed_tokens=(read if "allowed_token_ids" in own else common).sampling.allowed_tokens,
    )
    return replace(
        read,
        sampling=inherited,
        stops=(read if "stop" in own else common).stops,
        bad_words=(read if "bad_words" in own else common).bad_words,
    )


def samplings(
    options: Sequence[ChoiceOptions], limits: Sequence[int], spell: Spell, vocabulary: int
) -> tuple[Sampling, ...]:
    """Return how each choice is drawn, once its limit and the tokens of its bad words are known.

    spell: gives the tokens of bad words. vocabulary: its size. Raises ApiError 400 for tokens that do not exist, and
    for a min_tokens above the limit.
    """
    found: dict[ChoiceOptions, Sampling] = {}
    for one, limit in zip(options, limits, strict=True):
        if one.sampling.min_tokens > limit:
            param = one.where + "min_tokens"
            raise invalid_request(
                f"'{param}' is greater than the {limit} tokens that the answer may have.", param=param
            )
        if one not in found:
            found[one] = settle(one.sampling, spell(one.bad_words), vocabulary, one.where)
    return tuple([found[one] for one in options])


def _least(request: ChatRequest | CompletionRequest) -> int:
    """Return the fewest new tokens: 0 if the prompt is echoed, possibly with its log probabilities."""
    return 0 if isinstance(request, CompletionRequest) and request.echo else 1


def _read(members: Members, least: int) -> ChoiceOptions:
    return ChoiceOptions(
        sampling=read_sampling(members),
        seed=members.integer("seed", -(2**63), 2**63 - 1),
        max_tokens=_max_tokens(members, least),
        stops=_stops(members),
        bad_words=read_bad_words(members),
        where=members.where,
    )


def _max_tokens(members: Members, least: int) -> int | None:
    """Return `max_tokens` or its newer name. OpenAI refuses both together; here they only must not differ."""
    found = {value for name in _LIMITS if (value := members.integer(name, least)) is not None}
    if len(found) > 1:
        names = " and ".join(f"'{members.called(name)}'" for name in _LIMITS)
        raise invalid_request(f"{names} are both set, but their values differ.", param=members.called("max_tokens"))
    return next(iter(found), None)


def _stops(members: Members) -> tuple[str, ...]:
    value, name = members.get("stop"), members.called("stop")
    if isinstance(value, str):
        value = [value]
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type(name, "a string or an array of strings", value)
    if len(value) > _MOST_STOPS:
        raise invalid_request(f"'stop' may have at most {_MOST_STOPS} strings.", param=name)
    texts = []
    for number, stop in enumerate(value):
        if not isinstance(stop, str):
            raise wrong_type(f"{name}.{number}", "a string", stop)
        if not 0 < len(stop) <= _LONGEST_STOP:
            raise invalid_request(f"A stop string must have 1 to {_LONGEST_STOP} characters.", param=name)
        texts.append(stop)
    return tuple(texts)

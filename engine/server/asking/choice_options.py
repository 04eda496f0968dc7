"""What a client wants of each choice: the request's own fields, and what `choice_params` changes of them."""

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
    """What one choice is to be.

    seed: its own, where it has one apart from the request's; -1 asks for a random one. max_tokens: None leaves it
    to the dialect and the context; 0 asks for the echo alone. stops: strings that end it. bad_words: what sampling
    has to learn as tokens. where: what stands before the fields' names in refusals.
    """

    sampling: Sampling
    seed: int | None
    max_tokens: int | None
    stops: tuple[str, ...]
    bad_words: tuple[str, ...] = ()
    where: str = field(default="", compare=False)


def read_choice_options(request: ChatRequest | CompletionRequest) -> tuple[ChoiceOptions, ...]:
    """Read the wishes of all drawn choices, the same for every prompt; raises ApiError 400 naming the field at fault.

    What an entry of `choice_params` names stands for its choice in place of the request's; what it does not name
    is the request's.
    """
    common = _wish(Members({**request.body.fields, "seed": None}), _least(request))
    if request.choice_params is None:
        return (common,) * request.drawn
    wishes = tuple(
        [_overridden(request, own, f"{FIELD}.{number}.", common) for number, own in enumerate(request.choice_params)]
    )
    if len({word for words in {wish.bad_words for wish in wishes} for word in words}) > MOST_WORDS:
        raise invalid_request(f"The choices have more than {MOST_WORDS} 'bad_words' in total.", param=FIELD)
    return wishes


def _overridden(
    request: ChatRequest | CompletionRequest, own: Mapping[str, JSON], where: str, common: ChoiceOptions
) -> ChoiceOptions:
    if not own:
        return common
    check_choice(request.dialect, own, where)
    replaced = {"seed"}
    if not own.keys().isdisjoint(_LIMITS):  # two names of one thing
        replaced |= set(_LIMITS)
    base = {name: value for name, value in request.body.fields.items() if name not in replaced | set(_LONG)}
    wish = _wish(Members({**base, **own}, where), _least(request))
    inherited = replace(
        wish.sampling,
        logit_bias=(wish if "logit_bias" in own else common).sampling.logit_bias,
        allowed_tokens=(wish if "allowed_token_ids" in own else common).sampling.allowed_tokens,
    )
    return replace(
        wish,
        sampling=inherited,
        stops=(wish if "stop" in own else common).stops,
        bad_words=(wish if "bad_words" in own else common).bad_words,
    )


def samplings(
    wishes: Sequence[ChoiceOptions], limits: Sequence[int], spell: Spell, vocabulary: int
) -> tuple[Sampling, ...]:
    """How each choice is drawn, when its limit is known and the model's words are.

    spell: gives the tokens of bad words. vocabulary: its size. Raises ApiError 400 for tokens that do not exist, and
    for a least above the limit.
    """
    found: dict[ChoiceOptions, Sampling] = {}
    for wish, limit in zip(wishes, limits, strict=True):
        if wish.sampling.min_tokens > limit:
            param = wish.where + "min_tokens"
            raise invalid_request(
                f"'{param}' is greater than the {limit} tokens that the answer may have.", param=param
            )
        if wish not in found:
            found[wish] = settle(wish.sampling, spell(wish.bad_words), vocabulary, wish.where)
    return tuple([found[wish] for wish in wishes])


def _least(request: ChatRequest | CompletionRequest) -> int:
    """The fewest new tokens: none where the prompt comes back, and with it what the model thinks of it."""
    return 0 if isinstance(request, CompletionRequest) and request.echo else 1


def _wish(members: Members, least: int) -> ChoiceOptions:
    return ChoiceOptions(
        sampling=read_sampling(members),
        seed=members.integer("seed", -(2**63), 2**63 - 1),
        max_tokens=_max_tokens(members, least),
        stops=_stops(members),
        bad_words=read_bad_words(members),
        where=members.where,
    )


def _max_tokens(members: Members, least: int) -> int | None:
    """`max_tokens` and its newer name; OpenAI refuses both together, here they only must not differ."""
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

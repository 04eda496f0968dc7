"""Whether a refusal is about something that nproxy can do without.

That is n, a list of prompts, a seed, stream_options, a stream, or a request id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from nproxy.choices.capability import Capability
from nproxy.choices.compose import asked_as_stream, options_given
from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.leg import Leg
from nproxy.choices.lessons import FieldRefused, Lacks, NativeWidth
from nproxy.choices.plan import NO_LOGPROBS, own_seed
from nproxy.choices.seeds import in_31_bits
from nproxy.openai.errors import ApiError, wrap_foreign
from nproxy.openai.requests import CompletionRequest, Request

# As servers word it: "n must be 1 when using greedy sampling", "Field 'n': Value must be between 1 <= value <= 32",
# "'n' : number must be at most 1", "Only one completion choice is allowed", "Invalid n value (only n = 1 ...)",
# "Greedy methods without beam search do not support `num_return_sequences` different than 1 (got 2)".
_ABOUT_N = re.compile(
    r"(?<![\w/\\-])n(?:_cmpl)?(?![\w/-])|num_return_sequences|one (?:completion )?choice"
    r"|multiple (?:completions|choices|candidates)|candidate_?count",
    re.IGNORECASE,
)
_ABOUT_GREEDY = re.compile(r"greedy", re.IGNORECASE)  # also if no `temperature` is sent: 0 may be the server's default
# "prompt must be a string.", "cannot unmarshal array into Go struct field CompletionRequest.prompt of type string"
_ABOUT_PROMPT = re.compile(r"\bprompts?\b", re.IGNORECASE)
_ABOUT_TYPES = re.compile(r"\b(?:strings?|str|arrays?|lists?)\b", re.IGNORECASE)
_ABOUT_SEED = re.compile(r"\bseed\b")
_ABOUT_OPTIONS = re.compile(r"\bstream_options\b")
_ABOUT_STREAMS = re.compile(r"\bstream(?:s|ed|ing)?\b", re.IGNORECASE)
_ABOUT_LOGPROBS = re.compile(r"log[ _]?prob", re.IGNORECASE)
_LIMIT = re.compile(
    r"(?:<=|=<|≤|at most|no more than|(?:not (?:be )?|no )(?:greater|more|larger|higher|bigger) than"
    r"|(?:less|smaller|lower)(?: than)? or equal(?: to)?"  # pydantic's, and so FastAPI's and vLLM's
    r"|equal(?: to)? or (?:less|smaller|lower) than"
    r"|max(?:imum)?(?:_\w{1,32})?\b(?:[\w '\"`]{0,24}?(?:\b(?:of|is|to)|[:=]))?|up to"
    r"|limit(?:ed)? (?:of|is|to)|capped at"
    r"|exceeds?(?: the)?(?: limit| maximum)?(?: of)?"
    r"|(?:range|between|from|in|be)\W{0,6}1\s*(?:,|and)|(?<![\w.,-])1\s*(?:-|–|to|\.\.))\s*\(?(\d{1,9})(?!\d)",
    re.IGNORECASE,
)
# Gemini: "from 1 (inclusive) to 9 (exclusive)"; pydantic: "Input should be less than 9"
_BEYOND = re.compile(
    r"\bto (\d{1,9}) \(exclusive\)|(?<!or )(?:less|smaller|lower) than (\d{1,9})(?!\d)|below (\d{1,9})(?!\d)"
    r"|(?<![\w=])< ?(\d{1,9})(?!\d)",
    re.IGNORECASE,
)
# "Unrecognized request argument supplied", "Extra inputs are not permitted", "property 'seed' is unsupported".
_UNKNOWN = re.compile(
    r"unknown|unrecogni[sz]ed|unexpected|unsupported|additional propert|extra (?:input|field)"
    r"|(?:not|n't) (?:be )?(?:support(?:ed)?|permitted|allowed|recogni[sz]ed|known)",
    re.IGNORECASE,
)
_ABOUT_VALUES = re.compile(r"\d|range|negative|positive|integer|\bbits?\b|large|small|exceed|values?\b", re.IGNORECASE)
_CONDITION = re.compile(r"\b(?:with|when|while|if|unless|together)\b", re.IGNORECASE)

_AT_FAULT = frozenset({400, 422})
_REFUSALS = _AT_FAULT | {500, 501}  # 500, 501: how llama.cpp and others refuse what they do not support
_NOTHING_CAME = frozenset({FailureKind.CUT, FailureKind.RESET, FailureKind.SHORT})
_TEXTS = frozenset({"n", "n_cmpl", "model", "messages", "prompt"})


OmittableField = Literal["seed", "stream_options", "stream", "request_id"]


@dataclass(frozen=True, slots=True)
class TooWide:
    """The leg asked for too many choices. Legs of `width` may succeed. lesson: what their success teaches.

    refused: what is counted: that they were refused, or the form in which they could be counted.
    """

    width: int
    lesson: NativeWidth | Lacks | None
    refused: Literal["n_refused", "stream_refused"] = "n_refused"


@dataclass(frozen=True, slots=True)
class SplitPrompts:
    """The leg brought a list of prompts. One leg per prompt may succeed. lesson: what their success teaches."""

    lesson: FieldRefused | None


@dataclass(frozen=True, slots=True)
class Without:
    """The leg may succeed without this field. lesson: what its success teaches."""

    field: OmittableField
    lesson: FieldRefused | None


@dataclass(frozen=True, slots=True)
class Reseeded:
    """The leg may succeed with this seed."""

    seed: int


Remedy = TooWide | SplitPrompts | Without | Reseeded


def remedy(request: Request, capability: Capability, leg: Leg, failure: Failure) -> Remedy | None:
    """Return what to change so that the upstream accepts the leg, or None if the refusal is for the client to read.

    Nothing that the client asked for is left out silently: with one choice its seed, and with any number its own
    stream_options. With several choices, a seed that the upstream does not know costs reproducibility, not the answer.
    A refusal that also mentions something else in the request holds for similar requests only, and teaches nothing.
    """
    if failure.kind is not FailureKind.STATUS or failure.status not in _REFUSALS:
        return None
    if not failure.body and not failure.unread and failure.status in _AT_FAULT:
        # starlette-context, which llama-cpp-python uses, refuses an id that is not a UUID in this way
        return None if "request_id" in leg.omit else Without("request_id", FieldRefused("request_id"))
    error = wrap_foreign(failure.status, failure.content_type, failure.body)
    teaches = not _conditional(request, error)
    return (
        _narrower(request, leg, error, teaches)
        or _split_prompts(request, capability, leg, error, teaches)
        or _other_seed(request, leg, error, teaches)
        or _without_options(request, leg, error, teaches)
        or _as_whole(request, capability, leg, error)
    )


def one_by_one(request: Request, capability: Capability, leg: Leg, failure: Failure) -> TooWide | None:
    """Return legs of one choice, if a stream of several ended before it said anything, and nothing else has helped.

    ms-swift and LLaMA-Factory support `n` in whole answers, and break off streams of it after their head.
    """
    several = leg.width > 1 and capability.n_learned and asked_as_stream(request, capability, leg)
    return TooWide(1, Lacks("stream_n")) if several and failure.kind in _NOTHING_CAME else None


def unscored(request: Request, leg: Leg, failure: Failure) -> Failure:
    """Return the failure that the client reads: it asked for `best_of`, not for the log probabilities it needs."""
    at_fault = failure.kind is FailureKind.STATUS and failure.status in _AT_FAULT
    if not leg.scored or request.logprobs_asked or not at_fault:
        return failure
    error = wrap_foreign(failure.status or 400, failure.content_type, failure.body)
    return Failure(FailureKind.UNSCORED, NO_LOGPROBS) if _names(error, "logprobs", _ABOUT_LOGPROBS) else failure


def _narrower(request: Request, leg: Leg, error: ApiError, teaches: bool) -> TooWide | None:
    if leg.width == 1 or not _names(error, "n", _ABOUT_N):
        return None
    if request.greedy or _ABOUT_GREEDY.search(error.message):  # servers that support n refuse this, too
        return TooWide(1, None)
    width = named_width(error.message, leg.width) or 1
    return TooWide(width, NativeWidth(leg.width, width) if teaches else None)


def _split_prompts(
    request: Request, capability: Capability, leg: Leg, error: ApiError, teaches: bool
) -> SplitPrompts | None:
    """Suggest a leg for each prompt. Token ids that are refused for their type do no better one list at a time."""
    if not isinstance(request, CompletionRequest) or not request.listed or not isinstance(request.prompt[0], str):
        return None
    as_list = leg.prompt is None and capability.prompt_lists
    if not as_list or not _names(error, "prompt", _ABOUT_PROMPT) or not _ABOUT_TYPES.search(error.message):
        return None
    return SplitPrompts(FieldRefused("prompt_lists") if teaches else None)


def _other_seed(request: Request, leg: Leg, error: ApiError, teaches: bool) -> Without | Reseeded | None:
    """Suggest no seed, or another one. A seed that nproxy has drawn is refused because it is a seed.

    One that the client gave, or that follows from it, may be refused for its value. Then the refusal says nothing about
    seeds.
    """
    if leg.seed is None or "seed" in leg.omit or not _names(error, "seed", _ABOUT_SEED):
        return None
    own = own_seed(request, leg.offset)
    without = Without("seed", FieldRefused("seed") if teaches else None)
    if own is None and request.seed is None:
        return without
    if request.drawn == 1:
        return None
    fits = in_31_bits(leg.seed)
    if _UNKNOWN.search(error.message) and (fits == leg.seed or not _ABOUT_VALUES.search(error.message)):
        return without
    return Reseeded(fits) if own is None and fits != leg.seed else None


def _without_options(request: Request, leg: Leg, error: ApiError, teaches: bool) -> Without | None:
    named = _names(error, "stream_options", _ABOUT_OPTIONS)
    if not named or options_given(request) or "stream_options" in leg.omit:
        return None
    return Without("stream_options", FieldRefused("stream_options") if teaches else None)


def _as_whole(request: Request, capability: Capability, leg: Leg, error: ApiError) -> Without | TooWide | None:
    """Suggest the JSON form, which the client asked for, for a leg that nproxy called as a stream.

    The refusal may name the field that does not go with streams. A whole answer of several choices is of no use if its
    usage counts only one; then legs of one choice are suggested.
    """
    if request.stream or not asked_as_stream(request, capability, leg) or not _ABOUT_STREAMS.search(error.message):
        return None
    if leg.width > 1 and not capability.json_usage:
        return TooWide(1, None, "stream_refused")
    return Without("stream", None)


def _names(error: ApiError, field: str, wording: re.Pattern[str]) -> bool:
    """Whether the refusal is about this field: by the field that it names, or by its wording if it names none."""
    if error.param is None:
        return wording.search(error.message) is not None
    return error.param == field or (field == "n" and error.param == "n_cmpl")


def _conditional(request: Request, error: ApiError) -> bool:
    """Whether the refusal names another field of the request, or a condition."""
    words = set(re.findall(r"\w+", error.message))
    others = request.body.fields.keys() - _TEXTS - {error.param, "seed", "stream_options"}
    return _CONDITION.search(error.message) is not None or not words.isdisjoint(others)


def named_width(message: str, asked: int) -> int | None:
    """Return the limit below `asked` that a refusal of so many choices names; None if it names none."""
    found = [int(digits) for digits in _LIMIT.findall(message)]
    found += [int("".join(digits)) - 1 for digits in _BEYOND.findall(message)]
    return next((width for width in found if 1 <= width < asked), None)

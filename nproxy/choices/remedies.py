"""Whether an upstream's refusal is about something that nproxy can do without: `n`, `seed` or `stream_options`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.leg import Leg
from nproxy.choices.lessons import RefusedField
from nproxy.choices.plan import NO_LOGPROBS, Request
from nproxy.openai.errors import ApiError, wrap_foreign

# As servers word it: "n must be 1 when using greedy sampling", "Field 'n': Value must be between 1 <= value <= 32",
# "'n' : number must be at most 1", "Only one completion choice is allowed", "Invalid n value (only n = 1 ...)".
_ABOUT_N = re.compile(
    r"(?<![\w/\\-])n(?![\w/-])|one (?:completion )?choice|multiple (?:completions|choices)", re.IGNORECASE
)
_ABOUT_LOGPROBS = re.compile(r"log[ _]?prob", re.IGNORECASE)
_WIDEST = re.compile(r"(?:<=|at most|maximum(?: of| is)?|up to|exceeds?(?: the)?(?: limit| maximum)?(?: of)?)\s*(\d+)")


@dataclass(frozen=True, slots=True)
class TooWide:
    """The leg asked for too many choices; legs of `width` may do."""

    width: int


@dataclass(frozen=True, slots=True)
class Without:
    """The leg may do without this field."""

    field: RefusedField


def remedy(request: Request, leg: Leg, failure: Failure) -> TooWide | Without | None:
    """What to change so that the upstream takes the leg, or None where the refusal is the client's to read.

    What the client asked for is not left out behind its back: at one choice its seed, and at any number its own
    stream_options. At several choices a seed that the upstream does not know costs reproducibility, not the answer.
    """
    if not _refused(failure):
        return None
    error = wrap_foreign(failure.status or 400, failure.content_type, failure.body)
    if leg.width > 1 and _names(error, "n", _ABOUT_N):
        return TooWide(1 if request.greedy else named_width(error.message, leg.width) or 1)
    for field in _droppable(request, leg):
        if _names(error, field, re.compile(rf"\b{field}\b")):
            return Without(field)
    return None


def unscored(request: Request, leg: Leg, failure: Failure) -> Failure:
    """The failure that the client is to read: it asked for `best_of`, not for the log probabilities that this needs."""
    if not leg.scored or request.logprobs_asked or not _refused(failure):
        return failure
    error = wrap_foreign(failure.status or 400, failure.content_type, failure.body)
    return Failure(FailureKind.UNSCORED, NO_LOGPROBS) if _names(error, "logprobs", _ABOUT_LOGPROBS) else failure


def _refused(failure: Failure) -> bool:
    """Whether the upstream found the request at fault."""
    return failure.kind is FailureKind.STATUS and failure.status in (400, 422)


def _droppable(request: Request, leg: Leg) -> list[RefusedField]:
    fields: list[RefusedField] = []
    if leg.seed is not None and request.prompts * request.drawn > 1:
        fields.append("seed")
    if "stream_options" not in request.body.fields:
        fields.append("stream_options")
    return [field for field in fields if field not in leg.omit]


def _names(error: ApiError, field: str, wording: re.Pattern[str]) -> bool:
    """Whether the refusal is about this field: it says so where it names one, and otherwise its wording tells."""
    return error.param == field if error.param is not None else wording.search(error.message) is not None


def named_width(message: str, asked: int) -> int | None:
    """Give the limit that a refusal of `asked` choices names, if it names one below that."""
    found = [int(digits) for digits in _WIDEST.findall(message)]
    return next((width for width in found if 1 <= width < asked), None)

"""`choice_params`: sampling parameters of each choice, an extension of the request.

A list of n objects. What is in object i replaces the request's own field for choice i of every prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from nproxy.openai.errors import invalid_request
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import wrong_type
from nproxy.openai.typed import Int64, Stop, typed

ChoiceParams = tuple[Mapping[str, JSON], ...]
"""For each choice, its own parameters: values as sent, without nulls, because null keeps the request's own value."""

FIELD = "choice_params"


TOKEN_LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")
"""Names of one limit."""


def superseded(own: Mapping[str, JSON]) -> list[str]:
    """Return the request's fields that a choice's parameters replace without naming them."""
    return [name for name in TOKEN_LIMITS if name not in own] if any(name in own for name in TOKEN_LIMITS) else []


class Params(BaseModel):
    """What may differ between choices. Types only, because the limits are known to the server."""

    model_config = ConfigDict(strict=True, extra="forbid")

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: Stop = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None


def read_choice_params(fields: Mapping[str, JSON], n: int, drawn: int) -> ChoiceParams | None:
    """Read the field from a request for n choices that are made from `drawn`; None if it is absent or null.

    Raises ApiError 400 naming the place: not a list, not n objects, a field that cannot differ between choices, a wrong
    type; or `best_of` above n, because then it is not known which object belongs to which choice.
    """
    listed = fields.get(FIELD)
    if listed is None:
        return None
    if not isinstance(listed, list):
        raise wrong_type(FIELD, "an array of objects", listed)
    if len(listed) != n:
        message = f"Invalid '{FIELD}': it has {len(listed)} entries, but 'n' is {n}."
        raise invalid_request(message, param=FIELD, code="invalid_length")
    if drawn != n:
        raise invalid_request(f"'{FIELD}' cannot be used with 'best_of' greater than 'n'.", param=FIELD)
    return tuple(_read(own, f"{FIELD}.{place}") for place, own in enumerate(listed))


def _read(own: JSON, where: str) -> Mapping[str, JSON]:
    if not isinstance(own, dict):
        raise wrong_type(where, "an object", own)
    typed(Params, own, where + ".")
    return {name: value for name, value in own.items() if value is not None}

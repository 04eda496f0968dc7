"""Reads a parsed JSON object into a pydantic model, and words what is wrong as OpenAI does."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, TypeVar

from pydantic import BaseModel, Discriminator, Field, Tag, TypeAdapter, ValidationError

from nproxy.openai.errors import ApiError, invalid_request, shorten
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import above, below, missing, wrong_type

Model = TypeVar("Model", bound=BaseModel)
Fields = TypeVar("Fields")
Read = TypeVar("Read")

Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Stop = Annotated[
    Annotated[str, Tag("one")] | Annotated[list[str], Tag("list")] | Annotated[None, Tag("none")],
    Discriminator(lambda stop: "one" if isinstance(stop, str) else "none" if stop is None else "list"),
]
"""With these tags, an error is about the type that was sent, not about each type that was possible."""


def typed(shape: type[Model], value: Mapping[str, JSON], where: str) -> Model:
    """Read an object. Raises ApiError 400 naming a field. where: precedes the field's name as the client knows it."""
    return _read(shape.model_validate, value, where, shape.model_fields)


def checked(fields: TypeAdapter[Fields], value: Mapping[str, JSON]) -> Fields:
    """Like `typed`, for a TypedDict, which has only what was sent. It costs half as much as a model.

    A model is filled with defaults, and slow to read from.
    """
    validate: Callable[[object], Fields] = fields.validator.validate_python
    return _read(validate, value, "")


def _read(validate: Callable[[object], Read], value: Mapping[str, JSON], where: str, known: Iterable[str] = ()) -> Read:
    try:
        return validate(value)
    except ValidationError as invalid:
        problem = invalid.errors(include_url=False, include_context=True)[0]
    param = where + ".".join(map(str, _steps(value, problem["loc"], missing=problem["type"] == "missing")))
    bounds = problem.get("ctx", {})
    match problem["type"]:
        case "missing":
            raise missing(param)
        case "extra_forbidden":
            raise unknown(param, known if len(problem["loc"]) == 1 else ())
        case "greater_than_equal":
            raise below(param, problem["input"], bounds["ge"])
        case "less_than_equal":
            raise above(param, problem["input"], bounds["le"])
        case "string_too_short":
            raise invalid_request(f"Invalid '{param}': it must not be empty.", param=param, code="empty_string")
        case "string_too_long":
            raise invalid_request(
                f"Invalid '{param}': it has more than {bounds['max_length']} characters.",
                param=param,
                code="string_above_max_length",
            )
        case "float_type" if type(problem["input"]) is int:  # a float holds 309 digits at most
            raise invalid_request(f"Invalid '{param}': the number is too large.", param=param, code="invalid_value")
        case kind:
            raise wrong_type(param, _EXPECTED.get(kind, "another type"), problem["input"])


def unknown(param: str, known: Iterable[str] = (), meant: str | None = None) -> ApiError:
    """Build the error for an unknown field, with a hint.

    known: fields of the same object, of which a similar one may have been meant. meant: the one that was, if that is
    clear.
    """
    param = shorten(param)
    meant = meant or _similar(param, known)
    hint = f" Did you mean '{meant}'?" if meant else ""
    return invalid_request(f"Unrecognized request argument: '{param}'.{hint}", param=param, code="unknown_parameter")


def _similar(param: str, known: Iterable[str]) -> str:
    """Return the path of the known field that is spelled most like the last part of `param`; empty if none is."""
    where, dot, name = param.rpartition(".")
    return "".join(where + dot + close for close in difflib.get_close_matches(name, known, n=1))


_EXPECTED = {
    "bool_type": "a boolean",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a string or an array of strings",  # the only lists that are read here
    "string_type": "a string",
    "model_type": "an object",
}


def _steps(value: object, loc: tuple[int | str, ...], *, missing: bool) -> list[int | str]:
    """Return the steps of pydantic's location that lead through the value. It also contains the types of a union.

    missing: the last step is of a field that is absent.
    """
    steps: list[int | str] = []
    for place, step in enumerate(loc, 1):
        if isinstance(value, dict) and (step in value or (missing and place == len(loc))):
            value = value.get(str(step))
        elif isinstance(value, list) and isinstance(step, int):
            value = value[step]
        else:
            continue
        steps.append(step)
    return steps

"""Errors for refused fields, with OpenAI's codes: they say what the field is, what is allowed, and what came."""

from __future__ import annotations

from nproxy.openai.errors import ApiError, invalid_request, shorten
from nproxy.openai.jsonvalue import JSON


def missing(param: str) -> ApiError:
    """Build the error for a required field that is missing."""
    return invalid_request(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def empty_array(param: str) -> ApiError:
    """Build the error for an empty array."""
    return invalid_request(f"Invalid '{param}': it must not be an empty array.", param=param, code="empty_array")


def below(param: str, value: int, limit: int) -> ApiError:
    """Build the error for an integer that is too small. The message names limit and value."""
    message = f"Invalid '{param}': integer below minimum value. Expected a value >= {limit}, but got {_number(value)}."
    return invalid_request(message, param=param, code="integer_below_min_value")


def above(param: str, value: int, limit: int) -> ApiError:
    """Build the error for an integer that is too large. The message names limit and value."""
    message = f"Invalid '{param}': integer above maximum value. Expected a value <= {limit}, but got {_number(value)}."
    return invalid_request(message, param=param, code="integer_above_max_value")


def wrong_type(param: str, expected: str, value: JSON) -> ApiError:
    """Build the error for a value whose JSON type is not `expected`, which is given with its article."""
    message = f"Invalid type for '{param}': expected {expected}, but got {_kind(value)} instead."
    return invalid_request(message, param=param, code="invalid_type")


def _number(value: int) -> str:
    return shorten(str(value), 40)


def _kind(value: JSON) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"

"""Errors as the client sees them: a status and OpenAI's envelope."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from http import HTTPStatus
from types import MappingProxyType

from nproxy.openai.jsonvalue import JSON, dumps, loads

_NOTHING: Mapping[str, str] = MappingProxyType({})
_NO_EXTRA: Mapping[str, JSON] = MappingProxyType({})


class ApiError(Exception):
    """A request's failure: HTTP status, the envelope's four fields, and response headers.

    `extra`: further keys of an upstream's error object, which follow the four in the envelope.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = _NOTHING,
        extra: Mapping[str, JSON] = _NO_EXTRA,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = headers
        self.extra = extra

    def envelope(self) -> bytes:
        """Write the JSON body `{"error": {"message", "type", "param", "code"}}`."""
        error: dict[str, JSON] = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return dumps({"error": error | {key: value for key, value in self.extra.items() if key not in error}})


def invalid_request(message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> ApiError:
    """Build the error of a request that is itself at fault."""
    return ApiError(status, message, type="invalid_request_error", param=param, code=code)


def forbidden(message: str) -> ApiError:
    """Return the 403 for what nobody in the caller's place may do, whatever key they show."""
    return ApiError(403, message, type="permission_error", code="forbidden")


def unknown_url(message: str = "Unknown request path.") -> ApiError:
    """Build the 404 for a path that is not served."""
    return invalid_request(message, code="unknown_url", status=404)


def wrong_method(allowed: Collection[str], message: str | None = None) -> ApiError:
    """Build the 405 for a method that is not in `allowed`. message: replaces the default, which names those."""
    return ApiError(
        405,
        message or f"This endpoint supports only {' or '.join(allowed)}.",
        type="invalid_request_error",
        code="method_not_allowed",
        headers={"Allow": ", ".join(allowed)},
    )


def not_ready(reason: str) -> ApiError:
    """Build the 503 of a gateway that cannot serve any request now."""
    return ApiError(503, reason, type="server_error", code="not_ready")


def body_too_large(limit: int) -> ApiError:
    """Build the 413 for a body over `limit` bytes."""
    return invalid_request(f"The request body is larger than {limit} bytes.", code="body_too_large", status=413)


def model_not_found(model: str) -> ApiError:
    """Build the 404 for a model that no upstream serves."""
    return invalid_request(
        f"The model '{shorten(model)}' does not exist.", param="model", code="model_not_found", status=404
    )


def overloaded(message: str, *, retry_after: int) -> ApiError:
    """Build the 429 of a full queue; `retry_after` in seconds."""
    headers = {"retry-after": str(retry_after)}
    return ApiError(429, message, type="rate_limit_error", code="overloaded", headers=headers)


def engine_unavailable(message: str, *, retry_after: int = 1) -> ApiError:
    """Build the 503 of an engine that does not accept this request now; `retry_after` in seconds."""
    headers = {"retry-after": str(retry_after)}
    return ApiError(503, message, type="server_error", code="engine_unavailable", headers=headers)


def loop_detected() -> ApiError:
    """Build the 508 for a request that has come back to this gateway, which had sent it on."""
    message = "The request came back to this gateway: one of its upstreams leads back to it."
    return ApiError(508, message, type="server_error", code="loop_detected")


def upstream_unavailable(message: str = "The upstream cannot be reached.", *, status: int = 502) -> ApiError:
    """Build the error for refused, unresolvable, broken or untrusted connections. The message contains no URL.

    status: 503 if nothing was tried, because no replica may be called now.
    """
    return ApiError(status, message, type="server_error", code="upstream_unavailable")


def upstream_error(message: str = "The upstream failed.") -> ApiError:
    """Build the 502 for an upstream that answered, but not with what the protocol promises."""
    return ApiError(502, message, type="server_error", code="upstream_error")


def upstream_auth() -> ApiError:
    """Build the 502 for an upstream's 401 or 403 to nproxy's own key."""
    message = "The upstream refused nproxy's credentials."
    return ApiError(502, message, type="server_error", code="upstream_auth")


def upstream_timeout(message: str = "The upstream did not answer in time.") -> ApiError:
    """Build the 504 for an upstream that was too slow."""
    return ApiError(504, message, type="server_error", code="upstream_timeout")


def internal_error() -> ApiError:
    """Build the 500 that tells nothing of the cause."""
    return ApiError(500, "nproxy failed to handle this request.", type="server_error", code="internal_error")


def shorten(text: str, limit: int = 100) -> str:
    """Cut a text of a client or an upstream to a length that fits into a message."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


_TAG = re.compile(r"\s*<[!?/a-zA-Z]")


def wrap_foreign(status: int, content_type: str, body: bytes) -> ApiError:
    """Read an upstream's error answer, in whatever shape, into an ApiError with the same status.

    Known shapes: OpenAI's envelope (with keys missing or an integer `code`), the envelope's content at the top level,
    `{"error": "text"}`, `{"detail": ...}` with a text, a message, one of these or FastAPI's list, `{"errors": [...]}`,
    ModelScope's `{"errors": {...}}`, MiniMax's `base_resp`, FastChat's `error_code` beside a text, Z.ai's `code` beside
    a `msg`, plain text as it is or as a JSON string. If Mistral's `message` contains one of these, or FastAPI's list,
    as JSON or as JSON in a string, its content is used. HTML is never passed on. An integer code that repeats the
    status becomes null, any other a string. A status that is not an error's becomes 502.
    """
    given, status = status, status if 400 <= status <= 599 else 502
    try:
        value: JSON = loads(body)
    except ValueError:
        value = None if "html" in content_type.lower() else body.decode("utf-8", "replace")
    error = _opened(_inside(value))
    message = error.get("message")
    if not isinstance(message, str) or not message.strip() or _TAG.match(message):  # HTML or XML
        message = _said_nothing(given)
    kind, param, code = error.get("type"), error.get("param"), error.get("code")
    if isinstance(code, int):
        code = None if code in (given, status) else str(code)
    return ApiError(
        status,
        shorten(message, _MAX_MESSAGE),
        type=kind if isinstance(kind, str) and kind else _type_of(status),
        param=param if isinstance(param, str) else None,
        code=code if isinstance(code, str) else None,
        extra={key: value for key, value in error.items() if key not in _ENVELOPE},
    )


_ENVELOPE = frozenset({"message", "type", "param", "code"})
_MAX_MESSAGE = 8000


def _inside(value: JSON) -> Mapping[str, JSON]:
    """Return what the envelope's `error` object would contain."""
    match value:
        case str():
            return {"message": value.strip()}
        case {"error": dict(error)}:
            return error
        case [dict(one), *_]:  # Google's Gemini
            return _inside(one)
        case {"error": str(text)}:
            return {"message": text}
        case {"base_resp": {"status_code": code, "status_msg": str(text)}}:  # MiniMax
            return {"message": text, "code": code}
        case {"error_code": code, "text": str(text)}:  # FastChat, in streams
            return {"message": text, "code": code}
        case {"detail": str(text) | {"message": str(text)} | {"msg": str(text)}}:
            return {"message": text}
        case {"detail": {"error": dict() | str() as error}}:
            return _inside({"error": error})
        case {"errors": [str(text) | {"message": str(text)}, *_] | {"message": str(text)}}:
            return {"message": text}
        case {"detail": [{"msg": str(text), **first}, *_]}:
            where = first.get("loc")
            path = [str(step) for step in where if step != "body"] if isinstance(where, list) else []
            return {"message": f"{'.'.join(path)}: {text}" if path else text, "param": path[0] if path else None}
        case dict() if "message" in value:
            return {key: value[key] for key in value if key in _ENVELOPE}
        case {"msg": str(text), "code": code}:  # Z.ai
            return {"message": text, "code": code}
        case {"msg": str(text)}:  # iFlow
            return {"message": text}
        case _:
            return {}


def _opened(error: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the error with the message and the param that are inside its message, if that is not a plain text."""
    message = error.get("message")
    if isinstance(message, str) and message.startswith(("{", "[")):
        try:
            message = loads(message.encode())
        except ValueError:
            return error
    if isinstance(message, str):
        return error
    within = _inside({"detail": message} if isinstance(message, list) else message)
    return {**error, **{key: within[key] for key in ("message", "param") if within.get(key) is not None}}


def _said_nothing(status: int) -> str:
    try:
        return f"The upstream answered {status} {HTTPStatus(status).phrase}."
    except ValueError:
        return f"The upstream answered with status {status}."


def _type_of(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error"
        case _ if status < 500:
            return "invalid_request_error"
        case _:
            return "server_error"

"""OpenAI's error envelope, and foreign errors wrapped into it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nproxy.openai import errors
from nproxy.openai.errors import ApiError, wrap_foreign
from nproxy.openai.wire import error_event
from tests.transcripts.recorded import load


def inside(error: ApiError) -> dict[str, Any]:
    value = json.loads(error.envelope())
    assert list(value) == ["error"]
    assert {"message", "type", "param", "code"} <= set(value["error"])
    return dict(value["error"])


def wrapped(
    body: bytes | dict[str, Any] | list[Any] | str, status: int = 400, kind: str = "application/json"
) -> ApiError:
    return wrap_foreign(status, kind, body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.invalid_request("m", param="p", code="c"), 400, "c"),
        (errors.body_too_large(10), 413, "body_too_large"),
        (errors.model_not_found("m"), 404, "model_not_found"),
        (errors.overloaded("m", retry_after=3), 429, "overloaded"),
        (errors.upstream_unavailable(), 502, "upstream_unavailable"),
        (errors.upstream_error(), 502, "upstream_error"),
        (errors.upstream_auth(), 502, "upstream_auth"),
        (errors.upstream_timeout(), 504, "upstream_timeout"),
        (errors.internal_error(), 500, "internal_error"),
    ],
)
def test_every_error_has_the_four_keys(error: ApiError, status: int, code: str) -> None:
    assert error.status == status
    assert inside(error) == {"message": error.message, "type": error.type, "param": error.param, "code": code}
    assert error_event(error) == b"data: " + error.envelope() + b"\n\n"


def test_Q1_unknown_model_names_the_model_shortly() -> None:
    error = errors.model_not_found("x" * 10_000)
    assert (error.param, error.type) == ("model", "invalid_request_error")
    assert len(error.message) < 200


FORBIDDEN = [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "input": 1}]


@pytest.mark.parametrize(
    "message", [{"detail": FORBIDDEN}, FORBIDDEN, json.dumps({"detail": FORBIDDEN}), json.dumps(FORBIDDEN)]
)
@pytest.mark.parametrize("param", [{}, {"param": None}])
def test_K9_the_field_and_the_words_inside_a_message(message: Any, param: dict[str, None]) -> None:
    """Mistral's way."""
    error = wrapped({"object": "error", "message": message, "type": "invalid_request_error", **param}, 422)
    assert (error.status, error.param) == (422, "seed")
    assert error.message == "seed: Extra inputs are not permitted"


def test_K9_the_field_beside_a_message_stays_if_the_message_names_none() -> None:
    error = wrapped({"message": [{"msg": "too big"}], "param": "n"}, 422)
    assert (error.message, error.param) == ("too big", "n")


@pytest.mark.parametrize("message", ["[1] is no text", "{", '{"a": 1}', "[]", '["x"]', "[" * 5000])
def test_K9_a_message_that_only_begins_like_json_is_itself(message: str) -> None:
    assert wrapped({"message": message}).message == message


@pytest.mark.parametrize("message", [{}, {"a": 1}, [], [1], 3, None])
def test_K9_a_message_that_holds_no_words_says_nothing(message: Any) -> None:
    assert wrapped({"message": message}).message == "The upstream answered 400 Bad Request."


def test_N5_a_full_queue_says_when_to_come_back() -> None:
    assert errors.overloaded("m", retry_after=3).headers == {"retry-after": "3"}


def test_K9_vllm() -> None:
    recorded = load("vllm", "bad_n_0")
    error = wrap_foreign(recorded.status, recorded.content_type, recorded.body)
    assert error.status == 400
    assert inside(error) == {
        "message": "n must be at least 1, got 0.",
        "type": "BadRequestError",
        "param": None,
        "code": None,  # vLLM repeats the status there, as a number
    }


def test_K9_llamacpp_lacks_param() -> None:
    recorded = load("llamacpp", "bad_n_0")
    error = wrap_foreign(recorded.status, recorded.content_type, recorded.body)
    assert error.status == 400
    assert inside(error) == {
        "message": "Field 'n': Value must be between 1 <= value <= 32, but got 0",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }


def test_K1_an_envelope_comes_out_as_it_went_in() -> None:
    body = {"error": {"message": "m", "type": "t", "param": "p", "code": "c", "n_ctx": 4096}}
    error = wrapped(body, 422)
    assert (error.status, json.loads(error.envelope())) == (422, body)


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({"detail": "Not enough"}, "Not enough", None),
        ({"detail": {"message": "Not enough", "code": 1}}, "Not enough", None),
        ({"detail": {"msg": "Not enough"}}, "Not enough", None),
        ({"errors": [{"message": "Not enough"}]}, "Not enough", None),
        ({"errors": ["Not enough"]}, "Not enough", None),
        ({"errors": {"message": "Not enough"}, "request_id": "8"}, "Not enough", None),
        ({"detail": {"error": "Not enough"}}, "Not enough", None),
        ({"detail": {"error": {"message": "Not enough", "param": "n"}}}, "Not enough", "n"),
        ({"code": 500, "msg": "404 NOT_FOUND", "success": False}, "404 NOT_FOUND", None),
        ({"detail": [{"loc": ["body", "n"], "msg": "too big", "type": "x"}]}, "n: too big", "n"),
        ({"detail": [{"loc": ["body"], "msg": "too big"}]}, "too big", None),
        ({"detail": [{"loc": ["body", "a", 0], "msg": "bad"}, {"msg": "more"}]}, "a.0: bad", "a"),
        ({"error": "text"}, "text", None),
        ({"error": "text", "message": "unused"}, "text", None),
        ({"object": "error", "message": "old", "type": "t", "param": "p", "code": 400}, "old", "p"),
        ({"message": "m"}, "m", None),
        ([{"error": {"code": 400, "message": "m", "status": "INVALID_ARGUMENT"}}], "m", None),
        ([{"message": "m"}, {"message": "more"}], "m", None),
        ("a string", "a string", None),
        (b"plain text\n", "plain text", None),
        (b"caf\xe9", "caf\ufffd", None),
    ],
)
def test_K9_other_shapes(body: Any, message: str, param: str | None) -> None:
    error = wrapped(body, 418)
    assert (error.status, error.message, error.param) == (418, message, param)
    assert inside(error)["message"] == message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        {},
        [],
        {"error": None},
        {"error": {}},
        {"detail": []},
        {"message": 5},
        {"message": " "},
        b"null",
        b"7",
    ],
)
def test_K9_nothing_said(body: Any) -> None:
    assert wrapped(body, 503).message == "The upstream answered 503 Service Unavailable."
    assert wrapped(body, 599).message == "The upstream answered with status 599."


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html><body>secret</body></html>", "text/html"),
        (b"<!DOCTYPE html><p>secret", "text/plain"),
        (b"  \n<h1>secret</h1>", ""),
        (b"Sorry, secret", "text/html; charset=utf-8"),
        (b"Sorry, secret", "Text/HTML"),
        ({"error": "<html>secret</html>"}, "application/json"),
        ({"detail": "<h1>secret"}, "application/json"),
        ({"error": {"message": "<html>secret</html>", "type": "t"}}, "application/json"),
        ("<html>secret", "application/json"),
    ],
)
def test_K9_no_html_is_passed_on(body: Any, kind: str) -> None:
    error = wrapped(body, 502, kind)
    assert error.message == "The upstream answered 502 Bad Gateway."
    assert b"secret" not in error.envelope()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (529, "server_error"),
    ],
)
def test_K9_the_type_follows_the_status_where_none_was_sent(status: int, kind: str) -> None:
    assert wrapped({"error": "x"}, status).type == kind
    assert wrapped({"error": {"message": "x", "type": ""}}, status).type == kind


def test_K9_other_integer_codes_become_strings() -> None:
    assert wrapped({"error": {"message": "m", "code": 1234}}, 400).code == "1234"
    assert wrapped({"error": {"message": "m", "code": "c"}}, 400).code == "c"
    assert wrapped({"error": {"message": "m", "code": 400}}, 400).code is None
    assert wrapped({"error": {"message": "m", "code": 302}}, 302).code is None, "it repeats the status that was sent"


@pytest.mark.parametrize("status", [200, 204, 302, 307, 600, 0])
def test_K8_what_is_no_error_status_becomes_502(status: int) -> None:
    assert wrapped({"error": {"message": "m"}}, status).status == 502


def test_K9_a_long_text_is_cut() -> None:
    assert len(wrapped(b"x" * 1_000_000).envelope()) < 10_000


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["error", "message", "detail", "type", "param", "code", "loc", "msg"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=6,
    )
)
def test_K9_any_json_gives_an_envelope(value: Any) -> None:
    error = inside(wrapped(value))
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["code"] is None or isinstance(error["code"], str)

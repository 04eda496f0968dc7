"""Group A over the wire: what is refused is refused before any upstream call."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.fakes.upstream import MODEL, FakeUpstream
from tests.gateway.conftest import CHAT, Gateway, Start, body, envelope

COMPLETIONS = "/v1/completions"


async def refused(
    gateway: Gateway, upstream: FakeUpstream, sent: object, path: str = CHAT, status: int = 400
) -> dict[str, Any]:
    """Send what must be refused; gives the error, having checked that the upstream saw no call."""
    answer = await gateway.post(sent, path)
    assert answer.status_code == status, answer.text
    error = envelope(answer)
    assert error["type"] == "invalid_request_error"
    assert upstream.calls == []
    return error


@pytest.mark.parametrize("fields", [{}, {"n": None}, {"n": 1}])
async def test_A1_A2_one_choice_goes_through_as_sent(
    gateway: Gateway, upstream: FakeUpstream, fields: dict[str, Any]
) -> None:
    sent = json.dumps({**body(), **fields, "odd": {"b": 1.50, "a": [1e2]}}).encode()
    answer = await gateway.post(sent)
    assert answer.status_code == 200
    assert answer.headers["x-nproxy-mode"] == "relay"
    (call,) = upstream.calls
    assert "n" not in call.body
    assert call.body["odd"] == {"b": 1.5, "a": [100.0]}
    assert b'{"b": 1.5, "a": [100.0]}' in call.raw
    assert answer.json()["id"].startswith("fake-"), "the answer is untouched"


@pytest.mark.parametrize(
    ("n", "code"),
    [
        pytest.param(0, "integer_below_min_value", id="A3"),
        pytest.param(-1, "integer_below_min_value", id="A4"),
        pytest.param(129, "integer_above_max_value", id="A4"),
        pytest.param(True, None, id="A5"),
        pytest.param(2.0, "invalid_type", id="A6"),
        pytest.param("2", "invalid_type", id="A6"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_A3_A4_A5_A6_bad_n(
    gateway: Gateway, upstream: FakeUpstream, path: str, n: object, code: str | None
) -> None:
    error = await refused(gateway, upstream, body(path, n=n), path)
    assert error["param"] == "n"
    if code is not None:
        assert error["code"] == code
    if n in (-1, 129):
        assert "128" in error["message"] or "1" in error["message"]
        assert str(n) in error["message"]


async def test_A7_max_n_of_the_configuration(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"n_policy": {"max_n": 8}})
    error = await refused(gateway, upstream, body(n=9))
    assert error["param"] == "n"
    assert "8" in error["message"]
    assert (await gateway.ask(n=8)).status_code == 200


async def test_A8_prompts_times_n(gateway: Gateway, upstream: FakeUpstream) -> None:
    error = await refused(gateway, upstream, {"model": MODEL, "prompt": ["x"] * 5, "n": 128}, COMPLETIONS)
    assert error["param"] == "n"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        pytest.param({"modalities": ["text", "audio"], "audio": {"voice": "a", "format": "wav"}}, "n", id="A9"),
        pytest.param({"prediction": {"type": "content", "content": "x"}}, "n", id="A10"),
        pytest.param({"session_id": "s"}, "session_id", id="A11"),
        pytest.param({"id_slot": 1}, "id_slot", id="A11"),
        pytest.param({"slot_id": 1}, "slot_id", id="A11"),
        pytest.param({"n_cmpl": 3}, None, id="A17"),
        pytest.param({"use_beam_search": True}, "use_beam_search", id="A18"),
    ],
)
async def test_A9_A10_A11_A17_A18_fields_that_do_not_go_with_n(
    gateway: Gateway, upstream: FakeUpstream, fields: dict[str, Any], param: str | None
) -> None:
    error = await refused(gateway, upstream, body(n=2, **fields))
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b'"text"',
        b"\xff\xfe{\x00}\x00",
        b'{"model": "fake-model", "messages": [], "temperature": NaN}',
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b'{"n": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "half", "words", "array", "string", "utf-16", "nan", "surrogate", "deep", "digits"],
)
async def test_A12_not_a_json_object(gateway: Gateway, upstream: FakeUpstream, sent: bytes) -> None:
    error = await refused(gateway, upstream, sent)
    assert error["param"] in (None, "n")


async def test_A12_body_over_the_limit(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"limits": {"body_mib": 0.01}})
    await refused(gateway, upstream, body(pad="x" * 20_000), status=413)

    async def drip() -> Any:
        for _ in range(20):
            yield b" " * 1000

    answer = await gateway.client.post(CHAT, content=drip())
    assert answer.status_code == 413
    envelope(answer)
    assert upstream.calls == []


async def test_A12_gzip_bomb(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"limits": {"body_mib": 1}})
    bomb = gzip.compress(b" " * (64 << 20))
    assert len(bomb) < 1 << 20
    answer = await gateway.post(bomb, headers={"content-encoding": "gzip"})
    assert answer.status_code == 413
    assert upstream.calls == []


async def test_A14_greedy_is_accepted(gateway: Gateway, upstream: FakeUpstream) -> None:
    assert (await gateway.ask(n=3, temperature=0)).status_code == 200
    assert len(upstream.calls) == 3


@pytest.mark.parametrize("fields", [{"best_of": 21}, {"best_of": 1, "n": 2}, {"best_of": 3, "n": 2, "stream": True}])
async def test_A16_best_of(gateway: Gateway, upstream: FakeUpstream, fields: dict[str, Any]) -> None:
    error = await refused(gateway, upstream, body(COMPLETIONS, **fields), COMPLETIONS)
    assert error["param"] == "best_of"


async def test_A17_n_cmpl_counts_as_n(gateway: Gateway, upstream: FakeUpstream) -> None:
    answer = await gateway.ask(n_cmpl=3)
    assert len(answer.json()["choices"]) == 3
    assert all("n_cmpl" not in call.body for call in upstream.calls)


async def test_wider_than_all_permits_is_400_not_429(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"n_policy": {"max_n": 4}, "limits": {"inflight_choices": 8}})
    error = await refused(gateway, upstream, {"model": MODEL, "prompt": ["x"] * 3, "n": 3}, COMPLETIONS)
    assert error["param"] == "n"

"""Group A: invalid requests are refused before any upstream call, and valid ones are passed on as they were sent."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.conformance.scene import COMPLETIONS, Scene
from tests.conformance.settings import FANOUT, NATIVE, of_legs, of_native, of_one, of_several, settings
from tests.fakes.behaviour import MODEL
from tests.gateway.conftest import CHAT, body, envelope

before_the_plan = settings(FANOUT, NATIVE, why="n=1 is never refused")
of_bodies = settings(FANOUT, why="no plan is made")


async def refused(scene: Scene, sent: object, path: str = CHAT, status: int = 400) -> dict[str, Any]:
    """Send a request that must be refused; return the error, after checking that the upstream got no call."""
    answer = await (await scene.gateway()).post(sent, path)
    assert answer.status_code == status, answer.text
    error = envelope(answer)
    assert error["type"] == "invalid_request_error"
    assert scene.calls == []
    return error


EXACT = b'{"id": "up",  "choices": [{"message": {"role": "assistant", "content": "\\u00e9"}, "index": 0, "x": 1.50}]}'
"""No JSON writer of nproxy would produce these bytes."""


@of_one
@pytest.mark.parametrize("upstream_has_n", [False, True])
@pytest.mark.parametrize(
    "fields",
    [pytest.param({}, id="A1-absent"), pytest.param({"n": None}, id="A1-null"), pytest.param({"n": 1}, id="A2-one")],
)
async def test_A1_A2_one_choice_goes_through_as_sent(
    scene: Scene, fields: dict[str, Any], upstream_has_n: bool
) -> None:
    gateway = await scene.start(n="native" if upstream_has_n else "fanout")
    scene.does(body=EXACT)
    odd = b'"odd": {"b": 1.50, "a":  [1e2]}, "z": "\\u00e9"}'
    sent = json.dumps({**body(), **fields}).encode()[:-1] + b", " + odd
    answer = await gateway.post(sent)
    assert answer.headers["x-nproxy-mode"] == "relay"
    (call,) = scene.calls
    if upstream_has_n or "n" not in fields:
        assert call.raw == sent
    else:
        assert "n" not in call.body, "servers without n may not know it at all"
        assert call.body == {key: value for key, value in json.loads(sent).items() if key != "n"}
        assert odd.split(b", ")[0] in call.raw
    assert answer.content == EXACT, "the answer is untouched"


@of_one
async def test_A1_the_extra_usage_chunk_is_taken_out_again(scene: Scene) -> None:
    lines = [
        b'{"object":"chat.completion.chunk","id":"u","choices":[{"delta":{"role":"assistant","content":"x"},"index":0}],'
        b'"created":1,"model":"m"}',
        b'{"id":"u","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},'
        b'"finish_reason":"stop"}]}',
    ]
    tail = (
        b'{"id":"u","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
        b'"usage":{"prompt_tokens":1,"completion_tokens":1}}'
    )
    frames = [b"data: " + line + b"\n\n" for line in [*lines, tail, b"[DONE]"]]
    scene.does(body=b"".join(frames), content_type="text/event-stream")
    answer = await scene.send(stream=True)
    assert scene.calls[0].body["stream_options"] == {"include_usage": True}
    assert answer.content == frames[0] + frames[1] + frames[3]


@before_the_plan
@pytest.mark.parametrize(
    ("n", "code"),
    [
        pytest.param(0, "integer_below_min_value", id="A3-zero"),
        pytest.param(-1, "integer_below_min_value", id="A4-below"),
        pytest.param(129, "integer_above_max_value", id="A4-above"),
        pytest.param(True, None, id="A5-true"),
        pytest.param(2.0, "invalid_type", id="A6-float"),
        pytest.param("2", "invalid_type", id="A6-text"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_A3_A4_A5_A6_bad_n(scene: Scene, path: str, n: object, code: str | None) -> None:
    error = await refused(scene, body(path, n=n), path)
    assert error["param"] == "n"
    if code is not None:
        assert error["code"] == code
    if n in (-1, 129):
        assert "128" in error["message"] or "1" in error["message"]
        assert str(n) in error["message"]


@before_the_plan
async def test_A7_max_n_of_the_configuration(scene: Scene) -> None:
    gateway = await scene.start(config={"n_policy": {"max_n": 8}})
    error = await refused(scene, body(n=9))
    assert error["param"] == "n"
    assert "8" in error["message"]
    assert (await gateway.ask(n=8)).status_code == 200


@before_the_plan
async def test_A8_prompts_times_n(scene: Scene) -> None:
    error = await refused(scene, {"model": MODEL, "prompt": ["x"] * 5, "n": 128}, COMPLETIONS)
    assert (error["param"], error["code"]) == ("n", "integer_above_max_value")
    assert "5 prompts with 128 choices each are 640 choices" in error["message"]


@before_the_plan
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        pytest.param({"modalities": ["text", "audio"], "audio": {"voice": "a", "format": "wav"}}, "n", id="A9-audio"),
        pytest.param({"prediction": {"type": "content", "content": "x"}}, "n", id="A10-prediction"),
        pytest.param({"session_id": "s"}, "session_id", id="A11-session"),
        pytest.param({"id_slot": 1}, "id_slot", id="A11-id_slot"),
        pytest.param({"slot_id": 1}, "slot_id", id="A11-slot_id"),
        pytest.param({"n_cmpl": 3}, None, id="A17-two-names"),
    ],
)
async def test_A9_A10_A11_A17_fields_that_do_not_go_with_n(
    scene: Scene, fields: dict[str, Any], param: str | None
) -> None:
    error = await refused(scene, body(n=2, **fields))
    if param is not None:
        assert error["param"] == param


@of_bodies
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
async def test_A12_not_a_json_object(scene: Scene, sent: bytes) -> None:
    error = await refused(scene, sent)
    assert error["param"] in (None, "n")


@of_bodies
async def test_A12_body_over_the_limit(scene: Scene) -> None:
    gateway = await scene.start(config={"limits": {"body_mib": 0.01}})
    await refused(scene, body(pad="x" * 20_000), status=413)

    async def drip() -> Any:
        for _ in range(20):
            yield b" " * 1000

    answer = await gateway.client.post(CHAT, content=drip())
    assert answer.status_code == 413
    envelope(answer)
    assert scene.calls == []


@of_bodies
async def test_A12_gzip_bomb(scene: Scene) -> None:
    gateway = await scene.start(config={"limits": {"body_mib": 1}})
    bomb = gzip.compress(b" " * (64 << 20))
    assert len(bomb) < 1 << 20
    answer = await gateway.post(bomb, headers={"content-encoding": "gzip"})
    assert answer.status_code == 413
    assert scene.calls == []


@of_several
async def test_A14_greedy_choices_are_accepted(scene: Scene) -> None:
    assert (await scene.whole(temperature=0)).texts == scene.said
    assert len(scene.calls) == scene.legs


@before_the_plan
@pytest.mark.parametrize("fields", [{"best_of": 21}, {"best_of": 1, "n": 2}, {"best_of": 3, "n": 2, "stream": True}])
async def test_A16_best_of_out_of_range(scene: Scene, fields: dict[str, Any]) -> None:
    error = await refused(scene, body(COMPLETIONS, **fields), COMPLETIONS)
    assert error["param"] == "best_of"


@of_several
async def test_A17_n_cmpl_counts_as_n(scene: Scene) -> None:
    assert (await scene.whole(n=None, n_cmpl=3)).texts == scene.said
    asked = [call.body.get("n") or call.body.get("n_cmpl") for call in scene.calls]
    assert asked == ([3] if scene.setting.native else [None] * 3)


@of_legs
async def test_A18_separate_beams_are_not_the_n_best(scene: Scene) -> None:
    error = await refused(scene, body(n=2, use_beam_search=True))
    assert error["param"] == "use_beam_search"


@of_native
async def test_A18_beams_of_one_call_are(scene: Scene) -> None:
    assert (await scene.whole(use_beam_search=True)).texts == scene.said
    assert scene.calls[0].body["use_beam_search"] is True

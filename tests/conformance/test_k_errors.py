"""Group K: failures of upstreams, as clients see them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.conformance.scene import SEED, Scene
from tests.conformance.settings import EVERY, everywhere, of_legs, of_several, settings
from tests.fakes import quirks
from tests.fakes.behaviour import MODEL, said
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import CHAT, envelope, gateway_for

FORMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def scripted(message: str, **fields: Any) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None, **fields}
    return json.dumps({"error": error}).encode()


@everywhere
@FORMS
async def test_K1_all_calls_refused_alike(scene: Scene, stream: bool) -> None:
    scene.does(status=400, body=scripted("context too long", param="messages", code="context_length_exceeded"))
    error = await scene.refused(400, stream=stream)
    assert (error["message"], error["param"], error["code"]) == (
        "context too long",
        "messages",
        "context_length_exceeded",
    )
    assert len(scene.calls) <= scene.legs, "a 400 is not tried again"


@of_legs
async def test_K2_one_429_ends_its_siblings(scene: Scene) -> None:
    await scene.start(retries={"per_leg": 0})
    scene.does(pause=30)
    scene.choice_does(1, status=429, headers={"Retry-After": "7"})
    async with asyncio.timeout(10):  # far less than its siblings take
        answer = await scene.send()
    assert answer.status_code == 429
    assert float(answer.headers["retry-after"]) == 7
    await scene.upstream.until(lambda: not scene.upstream.open_calls, 1.0)


@of_legs
async def test_K2_the_longest_wait_known(scene: Scene) -> None:
    """Failures within the next 50 ms are taken into account."""
    await scene.start(retries={"per_leg": 0})
    held = asyncio.Event()
    scene.does(status=429, headers={"Retry-After": "3"})
    scene.choice_does(1, status=429, headers={"Retry-After": "9"}, hold=held)
    asked = asyncio.create_task(scene.send())
    await scene.upstream.until(lambda: len(scene.calls) == 3 and len(scene.upstream.open_calls) == 1)
    held.set()
    assert float((await asked).headers["retry-after"]) == 9


@settings(*EVERY[1:], why="of several calls the others come into it")
@FORMS
async def test_K2_a_429_keeps_its_status_and_wait(scene: Scene, stream: bool) -> None:
    await scene.start(retries={"per_leg": 0})
    scene.does(status=429, headers={"Retry-After": "7"})
    answer = await scene.send(stream=stream)
    assert (answer.status_code, float(answer.headers["retry-after"])) == (429, 7)


MOST_TELLING = [[400, 403, 429], [401, 429, 500], [429, 500, 504], [500, 504, 504], [422, 401, 503]]


@of_legs
@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("statuses", MOST_TELLING, ids=str)
async def test_K4_the_most_telling_failure(scene: Scene, statuses: list[int], turn: int) -> None:
    """The first status of each list wins, whichever call has it and whichever fails first."""
    await scene.start(retries={"per_leg": 0})
    ready = asyncio.Event()
    for place in range(3):
        scene.choice_does((place + turn) % 3, status=statuses[place], body=scripted("x"), hold=ready)
    asked = asyncio.create_task(scene.refused(statuses[0]))
    await scene.upstream.until(lambda: len(scene.upstream.open_calls) == 3)
    ready.set()
    await asked


@everywhere
@FORMS
@pytest.mark.parametrize(
    "first",
    [{"status": 502}, {"status": 503}, {"status": 504}, {"status": 529}, {"before_head": "reset"}, {"end_after": 0}],
    ids=str,
)
async def test_K5_before_its_first_event_a_call_is_made_again(
    scene: Scene, first: dict[str, Any], stream: bool
) -> None:
    if "end_after" in first and not stream:
        first = {"before_head": "close"}
    scene.first_call_does(**first)
    assert (await scene.either(stream)).texts == scene.said
    assert len(scene.calls) == scene.legs + 1
    failed, again = scene.calls[0], scene.made_again
    assert failed.body["seed"] == again.body["seed"]
    assert again.headers["x-request-id"] == failed.headers["x-request-id"] + "-r1"


@everywhere
async def test_K5_also_when_it_has_said_roles_only(scene: Scene) -> None:
    scene.first_call_does(end_after=1, end="cut")
    assert (await scene.stream()).texts == scene.said
    assert len(scene.calls) == scene.legs + 1


@of_legs
async def test_K5_also_while_siblings_stream(scene: Scene) -> None:
    """The sibling has sent text when the first call fails."""
    spoke, held = asyncio.Event(), asyncio.Event()
    sibling = scene.choice_does(1, hold_after=3)
    failing = scene.choice_does(0, hold=held, status=503)
    gateway = await scene.gateway()
    raw = b""
    async with gateway.client.stream("POST", "/v1/chat/completions", json=scene.fields(stream=True)) as answer:
        async for data in answer.aiter_raw():
            raw += data
            if f"seed {SEED + 1}".encode() in raw and not spoke.is_set():
                spoke.set()
                scene.choice_does(0)  # the next attempt succeeds
                held.set()
                await scene.upstream.until(lambda: len(scene.calls) == 4)
                sibling.go_on.set()
    assert failing.status == 503
    assert raw.endswith(b"data: [DONE]\n\n")
    assert said(SEED).split()[0].encode() in raw
    assert raw.count(b'"finish_reason":"stop"') == 3


@everywhere
@FORMS
@pytest.mark.parametrize(("status", "most"), [(502, 2), (503, 3)])
async def test_K5_the_attempts_end(scene: Scene, stream: bool, status: int, most: int) -> None:
    """A leg that lacks room while its siblings are being answered waits for theirs once, which is no attempt."""
    scene.does(status=status, body=scripted("a fault"))
    assert (await scene.refused(status, stream=stream))["message"] == "a fault"
    assert scene.legs < len(scene.calls) <= most * scene.legs


ENDS = ["reset", "cut", "close", "malformed", "error"]


@everywhere
@pytest.mark.parametrize("asked", [{}, {"stream_options": {"include_usage": True}}], ids=["", "usage"])
@pytest.mark.parametrize(
    "end", [pytest.param(end, id=f"{'K12' if end == 'malformed' else 'K6'}-{end}") for end in ENDS]
)
async def test_K6_K12_after_its_first_event_a_call_fails(scene: Scene, end: Any, asked: dict[str, Any]) -> None:
    """The reader accepts nothing after the error event. A call that has sent only roles would be made again instead."""
    roles = 1 if scene.legs > 1 else len(scene.said)
    scene.choice_does(1, end_after=roles + 1, end=end)
    answer = await scene.stream(**asked)
    assert answer.error is not None
    siblings = {index: text for index, text in scene.said.items() if index != 1} if scene.legs > 1 else {}
    assert answer.finishes == dict.fromkeys(siblings, "stop"), "siblings ran to their end"
    assert {index: answer.texts[index] for index in siblings} == siblings
    assert len(scene.calls) == scene.legs, "nobody is asked again"


NO_ANSWERS = [b"", b'{"choices": [{"ind', b"[]", b"<html></html>", b'{"choices": []}', b'{"choices": {}}', b"null"]


@everywhere
@pytest.mark.parametrize("sent", NO_ANSWERS)
async def test_K6_what_is_no_answer(scene: Scene, sent: bytes) -> None:
    scene.choice_does(1, body=sent)
    assert (await scene.refused(502))["type"] == "server_error"


@of_legs
async def test_K6_in_json_form_siblings_are_ended(scene: Scene) -> None:
    scene.does(pause=30)
    scene.choice_does(1, body=b"{")
    await scene.refused(502)
    await scene.upstream.until(lambda: not scene.upstream.open_calls, 1.0)


@everywhere
@FORMS
@pytest.mark.parametrize("error", [scripted("no"), b'{"error": "no"}', b'{"object": "error", "message": "no"}'])
async def test_K8_an_error_in_a_200(scene: Scene, stream: bool, error: bytes) -> None:
    scene.does(body=error)
    told = 400 if b"invalid_request" in error else 502
    assert (await scene.refused(told, stream=stream))["message"] == "no"


MINIMAX = b'{"id":"x","choices":null,"object":"chat.completion","base_resp":{"status_code":%d,"status_msg":"no"}}'
FASTCHAT = b'{"text": "no", "error_code": 50001}'
ZAI = b'{"code":%d,"msg":"no","success":false}'
IFLOW = b'{"status":"434","msg":"no","body":null}'
IFLYTEK = b'{"code":10012,"message":"no","sid":"cha000b0"}'


@everywhere
@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize(
    ("error", "told", "code"),
    [
        (MINIMAX % 1002, 429, "1002"),
        (MINIMAX % 2013, 400, "2013"),
        (MINIMAX % 1000, 502, "1000"),
        (FASTCHAT, 502, "50001"),
        (ZAI % 401, 502, "401"),
        (ZAI % 1305, 502, "1305"),
        (IFLOW, 434, None),
        (IFLYTEK, 502, "10012"),
    ],
)
async def test_K8_an_error_that_only_a_code_tells(
    scene: Scene, error: bytes, told: int, code: str | None, events: bool
) -> None:
    """MiniMax, in both forms (RooCodeInc/Roo-Code#9105), FastChat in streams, before `[DONE]`, Z.ai, iFlow, iFlytek."""
    body = b"data: %b\n\ndata: [DONE]\n\n" % error if events else error
    scene.does(body=body, content_type="text/event-stream" if events else "application/json")
    refused = await scene.refused(told, stream=events)
    assert (refused["message"], refused["code"]) == ("no", code)


@everywhere
@FORMS
@pytest.mark.parametrize(
    "outcome", [{"base_resp": {"status_code": 0, "status_msg": ""}}, {"code": 0, "message": "Success", "sid": "cha0"}]
)
async def test_K8_a_code_of_0_is_no_error(scene: Scene, stream: bool, outcome: dict[str, Any]) -> None:
    def change(answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, **outcome}

    scene.does(quirk=quirks.each(change), whole_quirk=change)
    assert (await scene.either(stream)).texts == scene.said


@everywhere
@FORMS
async def test_K16_an_empty_error_is_none(scene: Scene, stream: bool) -> None:
    def change(chunk: dict[str, Any]) -> dict[str, Any]:
        return {**chunk, "error": ""}

    scene.does(quirk=quirks.each(change), whole_quirk=change)
    assert (await scene.either(stream)).texts == scene.said


@everywhere
@FORMS
async def test_K17_events_under_another_content_type(scene: Scene, stream: bool) -> None:
    said = [{"index": i, "delta": {"content": "x"}, "finish_reason": "stop"} for i in range(scene.n)]
    events = [b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode() for choice in said]
    scene.does(body=b"".join(events), content_type="text/plain")
    assert (await scene.either(stream)).texts == dict.fromkeys(range(scene.n), "x")


@everywhere
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_K17_such_events_are_passed_on_as_they_come(scene: Scene, kind: str) -> None:
    """vLLM Ascend's proxy (vllm-project/vllm-ascend#5033), RamaLama's with documents (containers/ramalama#2837)."""
    scene.does(content_type=kind, preamble=b"\n: ping\n\n")
    held = scene.choice_does(
        0, content_type=kind, hold_after=3 * scene.n if scene.setting.native else 3, preamble=b"\n: ping\n\n"
    )
    gateway = await scene.gateway()
    raw = b""
    async with gateway.client.stream("POST", CHAT, json=scene.fields(stream=True)) as answer:
        async for data in answer.aiter_raw():
            raw += data
            if b"seed" in raw:
                held.go_on.set()
    assert held.go_on.is_set()
    assert raw.endswith(b"data: [DONE]\n\n")


@everywhere
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("behind", [b"", b"data: [DONE]\n\n", b"\n\ndata:[DONE]"])
async def test_K18_a_json_body_that_ends_like_a_stream(scene: Scene, kind: str, behind: bytes) -> None:
    """9router does both if `stream` is absent (decolua/9router#3492)."""
    message = {"role": "assistant", "content": "x"}
    said = [{"index": i, "message": message, "finish_reason": "stop"} for i in range(scene.n)]
    fields = {"id": "a", "object": "chat.completion", "created": 1, "model": MODEL}
    answer = json.dumps(fields | {"choices": said if scene.setting.native else said[:1]}).encode()
    for segment in (None, 1):
        scene.does(body=answer + behind, content_type=kind, segment=segment)
        assert (await scene.whole()).texts == dict.fromkeys(range(scene.n), "x")


FOREIGN = [
    (b'{"error": "plain words"}', "application/json", "plain words"),
    (b'{"detail": "not allowed"}', "application/json", "not allowed"),
    (b'{"detail": [{"msg": "too long", "loc": ["body", "x"]}]}', "application/json", "x: too long"),
    (b'{"message": {"detail": [{"msg": "too long", "loc": ["body", "x"]}]}}', "application/json", "x: too long"),
    (b"plain words", "text/plain", "plain words"),
    (b"<html><body><h1>Bad Gateway</h1></body></html>", "text/html", None),
    (b"<html><body><h1>Bad Gateway</h1></body></html>", "application/json", None),
    (b"", "text/plain", None),
]


@everywhere
@FORMS
@pytest.mark.parametrize(("sent", "content_type", "message"), FOREIGN)
async def test_K9_foreign_errors_are_wrapped(
    scene: Scene, sent: bytes, content_type: str, message: str | None, stream: bool
) -> None:
    scene.does(status=403, body=sent, content_type=content_type)
    error = await scene.refused(403, stream=stream)
    assert "<" not in error["message"]
    if message is not None:
        assert error["message"] == message


@everywhere
async def test_K10_a_failure_before_the_first_event_has_its_status(scene: Scene) -> None:
    scene.does(status=404, body=scripted("no such model"))
    await scene.refused(404, stream=True)


@everywhere
async def test_K10_the_head_goes_out_with_the_first_event(scene: Scene) -> None:
    """All calls stop after their first events; the client has its status."""
    scene.does(hold_after=2)
    scene.choice_does(1, hold_after=2)
    gateway = await scene.gateway()
    sent = scene.fields(stream=True)
    async with asyncio.timeout(5), gateway.client.stream("POST", "/v1/chat/completions", json=sent) as answer:
        assert answer.status_code == 200


@everywhere
async def test_K10_P14_after_a_while_the_head_goes_out_with_pings(scene: Scene) -> None:
    gateway = await scene.start(config={"stream": {"headers_after_seconds": 0.05, "ping_seconds": 0.05}})
    held = asyncio.Event()
    scene.does(hold=held, status=400, body=scripted("late"))
    raw = b""
    async with gateway.client.stream("POST", "/v1/chat/completions", json=scene.fields(stream=True)) as answer:
        assert answer.status_code == 200
        async for data in answer.aiter_raw():
            raw += data
            if raw.count(b": ping\n\n") == 3:
                held.set()
    assert raw.replace(b": ping\n\n", b"").startswith(b"data: {"), "nothing but pings before the error"
    assert json.loads(raw.rsplit(b"data: ", 1)[1])["error"]["message"] == "late"


@settings(why="no call comes about")
@pytest.mark.parametrize("n", [1, 2])
@FORMS
@pytest.mark.parametrize("address", ["refused", "unresolvable", "not TLS"])
async def test_K11_an_upstream_that_cannot_be_reached(address: str, stream: bool, n: int) -> None:
    async with FakeUpstream() as gone:
        refused = gone.url
    async with FakeUpstream() as there:
        urls = {"refused": refused, "not TLS": there.url.replace("http:", "https:")}
        url = urls.get(address, "http://no-such-host.invalid/v1")
        async with gateway_for({"upstreams": [{"name": "gone", "replicas": [url], "api_key": "sk-secret"}]}) as gateway:
            answer = await gateway.ask(n=n, stream=stream)
            assert answer.status_code == 502
            assert envelope(answer)["code"] == "upstream_unavailable"
            for secret in ("127.0.0.1", "sk-secret", "no-such-host"):
                assert secret not in answer.text
            assert (await gateway.client.get("/ready")).status_code == 503
            assert (await gateway.client.get("/health")).status_code == 200


@everywhere
@FORMS
async def test_K13_the_client_need_not_try_again_too(scene: Scene, stream: bool) -> None:
    scene.does(status=503)
    answer = await scene.send(stream=stream)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "false")


@everywhere
async def test_K13_without_attempts_of_ours_it_may(scene: Scene) -> None:
    await scene.start(retries={"per_leg": 0})
    scene.does(status=503)
    assert "x-should-retry" not in (await scene.send()).headers


@everywhere
@pytest.mark.parametrize("asked", [{}, {"stream_options": {"include_usage": True}}], ids=["", "usage"])
async def test_K14_a_json_body_in_answer_to_a_stream(scene: Scene, asked: dict[str, Any]) -> None:
    scene.does(json_for_stream=True)
    answer = await scene.stream(**asked)
    assert answer.texts == scene.said
    assert answer.finishes == scene.stopped
    assert (answer.usage is not None) == bool(asked)
    assert [voice.deltas[0] for voice in answer.voices] == [{"role": "assistant", "content": ""}] * scene.n


@everywhere
@FORMS
@pytest.mark.parametrize("status", [401, 403])
async def test_K15_whose_key_it_was(scene: Scene, status: int, stream: bool) -> None:
    scene.does(status=status, body=scripted("bad key"))
    assert (await scene.refused(status, stream=stream))["message"] == "bad key"
    await scene.start(api_key="sk-own")
    error = await scene.refused(502, stream=stream)
    assert error["code"] == "upstream_auth"
    assert "bad key" not in error["message"]


@of_several
async def test_N2_a_call_that_is_too_late(scene: Scene) -> None:
    await scene.start(timeouts={"first_event": 0.1, "response": 0.1}, retries={"per_leg": 0})
    scene.does(hold=asyncio.Event())
    for stream in (False, True):
        await scene.refused(504, stream=stream)
    await scene.upstream.until(lambda: not scene.upstream.open_calls, 1.0)

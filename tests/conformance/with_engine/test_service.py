"""Groups K to Q with the engine behind the gateway: refusals, clients that leave, many at once, names and paths."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.conformance.settings import of_engine
from tests.conformance.with_engine.stage import CHAT, COMPLETIONS, MODEL, QUEUE, WIDEST, EngineStage
from tests.real.metrics import wait_for

STREAMED = pytest.mark.parametrize("stream", [False, True])
NO_SCHEMA = {"name": "x", "schema": {"type": "no"}}
ENDLESS: dict[str, Any] = {"ignore_eos": True, "max_tokens": 15_000}


async def until(condition: Any, what: str, seconds: float = 20.0) -> None:
    await asyncio.to_thread(wait_for, condition, seconds=seconds, what=what)


def at_rest(stage: EngineStage) -> bool:
    """Whether the engine computes nothing and holds nothing for anybody."""
    return stage.counted("sequences", state="running") + stage.counted("blocks", state="used") == 0


@of_engine
@STREAMED
@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": [{"role": "user", "content": "x" * 20_000}]}, "messages", "context_length_exceeded"),
        ({"temperature": 3}, "temperature", "decimal_above_max_value"),
        ({"frobnicate": 1}, "frobnicate", "unknown_parameter"),
        ({"response_format": {"type": "json_schema", "json_schema": NO_SCHEMA}}, "response_format", None),
    ],
    ids=["length", "bounds", "unknown", "schema"],
)  # fmt: skip
async def test_K1_a_refusal_is_told_once_in_the_engines_words(
    stage: EngineStage, fields: dict[str, Any], param: str, code: str | None, stream: bool
) -> None:
    told = await stage.refused(400, **fields, stream=stream)
    async with httpx.AsyncClient(base_url=stage.engine.url, trust_env=False) as direct:
        own = await direct.post(CHAT, json=stage.fields(**fields, stream=stream))
    assert told == own.json()["error"]
    assert told["param"].startswith(param)
    assert code is None or told["code"] == code


@of_engine
async def test_K2_a_full_queue_is_a_429_with_its_wait(stage: EngineStage) -> None:
    """As many run as can, as many wait as may; then the next is turned away, and the others go on."""
    gateway = await stage.start(retries={"per_leg": 0})
    held = [asyncio.create_task(stage.send(n=WIDEST, stream=True, **ENDLESS))]
    await until(lambda: stage.counted("sequences", state="running") == WIDEST, "all running")
    held.append(asyncio.create_task(stage.send(n=QUEUE, stream=True, **ENDLESS)))
    await until(lambda: stage.counted("sequences", state="waiting") == QUEUE, "a full queue")
    answer = await stage.send()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["type"] == "rate_limit_error"
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    await until(lambda: at_rest(stage), "an engine at rest")
    assert await gateway.metric("nproxy_inflight_choices") == 0


@of_engine
async def test_K10_the_head_goes_out_with_the_first_event(stage: EngineStage) -> None:
    gateway = await stage.gateway()
    sent = stage.fields(stream=True, **ENDLESS)
    async with gateway.client.stream("POST", CHAT, json=sent) as answer:
        assert answer.status_code == 200
        first = await anext(answer.aiter_raw())
    assert first.startswith(b"data: ")
    await until(lambda: at_rest(stage), "an engine at rest")


@of_engine
@STREAMED
async def test_L1_L6_Q20_a_client_that_leaves_frees_everything(stage: EngineStage, stream: bool) -> None:
    gateway = await stage.gateway()
    asked = asyncio.create_task(stage.send(n=8, stream=stream, **ENDLESS))
    await until(lambda: stage.counted("sequences", state="running") == 8, "eight sequences")
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await until(lambda: at_rest(stage), "an engine at rest")
    for gauge in ("nproxy_inflight_choices", "nproxy_inflight_requests"):
        assert await gateway.metric(gauge) == 0


@of_engine
async def test_M1_a_slow_reader_delays_nobody(stage: EngineStage) -> None:
    gateway = await stage.gateway()
    sent = json.dumps(stage.fields(n=8, stream=True, **ENDLESS)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n"
    _, writer = await asyncio.open_connection(*gateway.address)
    writer.write(head.encode() + sent)
    await writer.drain()
    await until(lambda: stage.counted("sequences", state="running") == 8, "eight sequences")
    assert len((await stage.whole()).texts) == 3
    writer.close()
    await until(lambda: at_rest(stage), "an engine at rest")


@of_engine
async def test_N3_prompts_wait_for_room_and_all_are_answered(stage: EngineStage) -> None:
    """Requests of any width, together wider than the engine runs at once."""
    widths = [1, 8, 2, 5, 1, 8]
    answers = await asyncio.gather(*(stage.whole(n=n, ignore_eos=True) for n in widths))
    assert [len(answer.texts) for answer in answers] == widths
    await until(lambda: at_rest(stage), "an engine at rest")


@of_engine
async def test_O1_who_shows_another_key_shares_nothing_computed(stage: EngineStage) -> None:
    cached = []
    for key in ("a", "a", "b"):
        headers = {"authorization": f"Bearer O1 {key}"}
        usage = (await stage.send(COMPLETIONS, prompt="y" * 40, headers=headers)).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 32, 0]


@of_engine
async def test_O2_the_id_is_echoed(stage: EngineStage) -> None:
    answer = await stage.send(headers={"x-request-id": "a-B.9"})
    assert answer.headers["x-request-id"] == "a-B.9"


@of_engine
async def test_Q1_unknown_model(stage: EngineStage) -> None:
    assert (await stage.refused(404, model="none"))["code"] == "model_not_found"


@of_engine
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_Q1_a_request_without_a_model_is_for_the_only_one(stage: EngineStage, path: str) -> None:
    body = {name: value for name, value in stage.fields(path, n=2).items() if name != "model"}
    answer = await (await stage.gateway()).post(body, path)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["model"], len(answer.json()["choices"])) == (MODEL, 2)


@of_engine
@STREAMED
async def test_Q4_one_call_with_n_computes_the_prompt_once(stage: EngineStage, stream: bool) -> None:
    forks, calls = stage.counted("forks_total"), stage.counted("tokens_total", type="prompt")
    answer = await stage.send(COMPLETIONS, prompt=f"Q4 {stream}" * 5, stream=stream, n=4)
    assert answer.headers["x-nproxy-mode"] == "relay"
    assert stage.counted("forks_total") - forks == 3
    assert stage.counted("tokens_total", type="prompt") - calls == len(f"Q4 {stream}" * 5)


@of_engine
@pytest.mark.parametrize(("path", "body"), [("/v1/tokenize", {"prompt": "ab"}), ("/v1/responses", {"input": "hi"})])
async def test_Q8_Q16_other_endpoints_pass(stage: EngineStage, path: str, body: dict[str, Any]) -> None:
    limit = {"max_output_tokens": 16} if path == "/v1/responses" else {}
    answer = await (await stage.gateway()).post({"model": MODEL, **body, **limit}, path)
    assert answer.status_code == 200, answer.text
    assert answer.json()["count" if path == "/v1/tokenize" else "output"]


@of_engine
async def test_Q9_the_engines_model_is_listed(stage: EngineStage) -> None:
    listed = (await (await stage.gateway()).client.get("/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == [MODEL]

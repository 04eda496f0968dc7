"""The engine over HTTP with the real default model: choices, seeds, stops, usage, refusals, leaving."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.engine.asking import (
    answer,
    ask,
    chat,
    complete,
    counts,
    folded,
    http_chunks,
    post,
    raw,
    refused,
    stream,
    streamed,
    texts,
)
from tests.engine.conftest import MODEL
from tests.real.metrics import metric, wait_for
from tests.real.processes import Server

pytestmark = pytest.mark.model

QUESTION_TOKENS = 34  # "Name a color." in the default model's template, as vLLM counts it, too


async def test_J1_n_choices_of_a_chat(client: httpx.AsyncClient) -> None:
    answered = await ask(client, n=4, seed=1, ignore_eos=True)
    assert len(set(texts(answered))) == 4
    assert [choice["finish_reason"] for choice in answered["choices"]] == ["length"] * 4
    assert all(choice["message"]["role"] == "assistant" for choice in answered["choices"])
    assert counts(answered["usage"]) == (QUESTION_TOKENS, 32)
    assert (answered["object"], answered["model"]) == ("chat.completion", MODEL)


async def test_without_a_seed_answers_differ(client: httpx.AsyncClient) -> None:
    first, second = await asyncio.gather(ask(client, n=2), ask(client, n=2))
    assert len({*texts(first), *texts(second)}) == 4


async def test_D16_a_stream_folds_to_the_whole_answer(client: httpx.AsyncClient) -> None:
    fields = {"n": 4, "seed": 11, "max_tokens": 24}
    whole, live = await ask(client, **fields), await streamed(client, **fields)
    assert [live.texts[index] for index in range(4)] == texts(whole)
    assert live.reasons == {index: [whole["choices"][index]["finish_reason"]] for index in range(4)}
    assert live.done


async def test_D1_D4_D5_the_stream_begins_with_the_roles(client: httpx.AsyncClient) -> None:
    live = await streamed(client, n=3)
    heads = [chunk["choices"][0] for chunk in live.chunks[:3]]
    assert [head["index"] for head in heads] == [0, 1, 2]
    assert all(head["delta"] == {"role": "assistant", "content": ""} for head in heads)
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in live.chunks[3:])
    assert all(len(chunk["choices"]) == 1 for chunk in live.chunks)
    shared = {(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in live.chunks}
    assert len(shared) == 1
    assert all("usage" not in chunk for chunk in live.chunks)


async def test_E7_usage_comes_last_and_once(client: httpx.AsyncClient) -> None:
    live = await streamed(client, n=2, ignore_eos=True, stream_options={"include_usage": True})
    *before, last = live.chunks
    assert all(chunk["usage"] is None for chunk in before)
    assert last["choices"] == []
    assert counts(last["usage"]) == (QUESTION_TOKENS, 16)
    assert live.done


async def test_E12_continuous_usage_is_a_running_total(client: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    live = await streamed(client, n=3, ignore_eos=True, logprobs=True, stream_options=options)
    shown, totals = 0, [0]
    for chunk in live.chunks:
        shown += sum(len(choice["logprobs"]["content"]) for choice in chunk["choices"] if choice.get("logprobs"))
        if chunk["usage"]:
            totals.append(chunk["usage"]["completion_tokens"])
            assert totals[-1] >= max(shown, totals[-2])
    assert totals[-1] == shown == 24


async def test_B7_every_prompt_has_the_same_seeds(client: httpx.AsyncClient) -> None:
    both = texts(await complete(client, prompt=["The sky is", "Once upon"], n=2, seed=5))
    sky = texts(await complete(client, prompt="The sky is", n=2, seed=5))
    once = texts(await complete(client, prompt="Once upon", n=2, seed=5))
    assert both == sky + once


async def test_A14_greedy_choices_are_equal(client: httpx.AsyncClient) -> None:
    assert len(set(texts(await ask(client, n=3, temperature=0)))) == 1


async def test_choice_params_mix_greedy_and_sampled_choices(client: httpx.AsyncClient) -> None:
    own = [{"temperature": 0}, {}, {"temperature": 0.5, "top_p": 0.9}, {"seed": 77, "max_tokens": 5}]
    common = {"seed": 30, "max_tokens": 24, "ignore_eos": True}
    asked: list[dict[str, Any]] = [{"temperature": 0}, {"seed": 31}, {"seed": 32, "temperature": 0.5, "top_p": 0.9}]
    asked.append({"seed": 77, "max_tokens": 5})
    alone = [texts(await ask(client, **{**common, **one}))[0] for one in asked]
    assert texts(await ask(client, n=4, choice_params=own, **common)) == alone
    live = await streamed(client, n=4, choice_params=own, **common)
    assert [live.texts[index] for index in range(4)] == alone
    assert len(set(alone)) == 4


async def test_I1_a_stop_string_over_token_borders(client: httpx.AsyncClient) -> None:
    fields = {"seed": 3, "max_tokens": 30, "ignore_eos": True}
    plain = await ask(client, **fields, logprobs=True)
    [text] = texts(plain)
    tokens = [entry["token"] for entry in plain["choices"][0]["logprobs"]["content"]]
    borders = [len("".join(tokens[:number])) for number in range(8, len(tokens) - 4)]
    at, stop = next(
        (border, text[border - 2 : border + 2])
        for border in borders
        if text.find(text[border - 2 : border + 2]) == border - 2
    )
    whole = await ask(client, **fields, stop=[stop, "never seen"])
    live = await streamed(client, **fields, stop=stop)
    assert texts(whole) == [text[: at - 2]] == [live.texts[0]]
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert live.reasons == {0: ["stop"]}
    assert whole["usage"]["completion_tokens"] < 30


async def test_I2_a_stop_ends_its_own_choice_only(client: httpx.AsyncClient) -> None:
    fields = {"n": 3, "seed": 21, "max_tokens": 24}
    plain = texts(await ask(client, **fields))
    stop = next(
        word for word in plain[1].split() if len(word) > 3 and not any(word in other for other in (plain[0], plain[2]))
    )
    stopped = await ask(client, **fields, stop=stop)
    assert texts(stopped) == [plain[0], plain[1][: plain[1].index(stop)], plain[2]]
    assert [choice["finish_reason"] for choice in stopped["choices"]][1] == "stop"


async def test_the_models_own_end_and_ignore_eos(client: httpx.AsyncClient) -> None:
    fields = {"messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, "max_tokens": 60}
    ended = await ask(client, **fields)
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["usage"]["completion_tokens"] < 60
    assert "<|im_end|>" not in texts(ended)[0]
    on = await ask(client, **fields, ignore_eos=True)
    assert (on["choices"][0]["finish_reason"], on["usage"]["completion_tokens"]) == ("length", 60)
    assert texts(on)[0].startswith(texts(ended)[0])


async def test_stop_token_ids(client: httpx.AsyncClient) -> None:
    comma = 28
    fields = {"n": 4, "seed": 2, "max_tokens": 24}
    plain, cut = await complete(client, **fields), await complete(client, **fields, stop_token_ids=[comma])
    assert texts(plain) != texts(cut)
    for before, after, choice in zip(texts(plain), texts(cut), cut["choices"], strict=True):
        assert before == after or (before.startswith(after + ",") and choice["finish_reason"] == "stop")


async def test_J2_prompts_are_answered_in_order(client: httpx.AsyncClient) -> None:
    answered = await complete(client, prompt=["The sky is", "Grass is"], n=2, max_tokens=6, ignore_eos=True)
    assert len(texts(answered)) == 4
    assert counts(answered["usage"]) == (6, 24)
    assert answered["object"] == "text_completion"


async def test_J3_token_ids_are_the_text_they_stand_for(client: httpx.AsyncClient) -> None:
    words = await complete(client, prompt="The sky is", seed=8)
    ids = await complete(client, prompt=[504, 6376, 314], seed=8)
    assert texts(ids) == texts(words)
    lists = await complete(client, prompt=[[504, 6376, 314], [504]], seed=8)
    assert texts(lists)[0] == texts(words)[0]


async def test_J6_echo(client: httpx.AsyncClient) -> None:
    plain = texts(await complete(client, n=2, seed=8))
    echoed = texts(await complete(client, n=2, seed=8, echo=True))
    assert echoed == ["The sky is" + text for text in plain]
    body = {"model": MODEL, "prompt": "The sky is", "n": 2, "seed": 8, "echo": True, "max_tokens": 8}
    live = await stream(client, "/v1/completions", body)
    assert [live.texts[0], live.texts[1]] == echoed


async def test_completions_without_max_tokens_give_sixteen(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "The sky is", "ignore_eos": True}
    answered = await answer(client, "/v1/completions", body)
    assert answered["usage"]["completion_tokens"] == 16


async def test_what_one_step_drew_leaves_in_one_write(engine_server: Server) -> None:
    body = chat(n=8, max_tokens=12, stream=True, seed=4, ignore_eos=True)
    port = int(engine_server.url.rpartition(":")[2])
    reader, writer = await raw(port, post("/v1/chat/completions", body))
    try:
        written = await http_chunks(reader)
    finally:
        writer.close()
        await writer.wait_closed()
    first = folded(written[0].decode().splitlines())
    assert sorted(first.texts) == list(range(8))
    assert all(first.texts.values()), "every choice's first token stands in the first write"
    assert len(written) <= 12  # one write per step, and no more


async def test_characters_are_whole_in_every_chunk(client: httpx.AsyncClient) -> None:
    # Greedy repetition of what the prompt shows: characters of several tokens each.
    body = {"model": MODEL, "prompt": "😀🎉🚀 😀🎉🚀 😀🎉🚀 😀🎉🚀", "max_tokens": 40, "temperature": 0}
    live = await stream(client, "/v1/completions", body)
    whole = await answer(client, "/v1/completions", body)
    assert live.texts[0] == texts(whole)[0]
    assert "🎉" in live.texts[0]
    assert all("\ufffd" not in chunk["choices"][0]["text"] for chunk in live.chunks[:-1])


@pytest.mark.parametrize("streaming", [True, False])
async def test_L6_a_client_that_leaves_frees_its_blocks(engine_server: Server, streaming: bool) -> None:
    def used() -> float:
        return metric(engine_server.url, "nproxy_engine_blocks", state="used")

    def running() -> float:
        return metric(engine_server.url, "nproxy_engine_sequences", state="running")

    def settled() -> bool:
        return used() == 0 and running() == 0

    await asyncio.to_thread(wait_for, settled, seconds=10.0, what="an idle engine")
    body = chat(n=6, max_tokens=4000, ignore_eos=True, stream=streaming)
    port = int(engine_server.url.rpartition(":")[2])
    _, writer = await raw(port, post("/v1/chat/completions", body))
    await asyncio.to_thread(wait_for, lambda: running() == 6, seconds=20.0, what="six sequences")
    assert used() > 0
    writer.close()
    await writer.wait_closed()
    await asyncio.to_thread(wait_for, settled, seconds=1.0, what="everything freed")


async def test_M1_a_reader_that_does_not_read_delays_nobody(engine_server: Server, client: httpx.AsyncClient) -> None:
    body = chat(n=16, max_tokens=2000, ignore_eos=True, stream=True)
    port = int(engine_server.url.rpartition(":")[2])
    _, writer = await raw(port, post("/v1/chat/completions", body))  # and never read
    try:
        answered = await asyncio.wait_for(ask(client, n=2, max_tokens=8), 30)
        assert len(texts(answered)) == 2
    finally:
        writer.close()
        await writer.wait_closed()


TOO_LONG = [{"role": "user", "content": "word " * 9000}]


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"),
    [
        ("chat/completions", chat(n=0), 400, "n", "integer_below_min_value"),
        ("chat/completions", chat(n=-1), 400, "n", "integer_below_min_value"),
        ("chat/completions", chat(n=49), 400, "n", "integer_above_max_value"),
        ("chat/completions", chat(n=129), 400, "n", "integer_above_max_value"),
        ("chat/completions", chat(n=True), 400, "n", "invalid_type"),
        ("chat/completions", chat(n=2.0), 400, "n", "invalid_type"),
        ("chat/completions", chat(n="2"), 400, "n", "invalid_type"),
        ("chat/completions", chat(model="other"), 404, "model", "model_not_found"),
        ("chat/completions", b"{not json", 400, None, None),
        ("chat/completions", b"[]", 400, None, None),
        ("chat/completions", b" " * (10 * 2**20 + 1), 413, None, "body_too_large"),
        ("chat/completions", chat(messages=TOO_LONG), 400, "messages", "context_length_exceeded"),
        ("chat/completions", chat(max_tokens=9000), 400, "messages", "context_length_exceeded"),
        ("chat/completions", chat(priority=1), 400, "priority", "unsupported_parameter"),
        ("chat/completions", chat(frobnicate=1), 400, "frobnicate", "unknown_parameter"),
        ("chat/completions", chat(temperature=-1, stream=True), 400, "temperature", "decimal_below_min_value"),
        ("completions", {"model": MODEL, "prompt": []}, 400, "prompt", None),
        ("completions", {"model": MODEL, "prompt": ["a", 1]}, 400, "prompt", None),
        ("completions", {"model": MODEL, "prompt": "x", "suffix": "y"}, 400, "suffix", "unsupported_parameter"),
        ("completions", {"model": MODEL, "prompt": [[49152]]}, 400, "prompt", None),
        ("images/generations", {"model": MODEL, "prompt": "x"}, 404, None, None),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
async def test_A_refusals(
    client: httpx.AsyncClient, path: str, body: Any, status: int, param: str | None, code: str | None
) -> None:
    got, error = await refused(client, f"/v1/{path}", body)
    assert (got, error["param"]) == (status, param), error
    assert error["type"] == "invalid_request_error"
    if code is not None:
        assert error["code"] == code


@pytest.mark.parametrize(
    ("path", "body", "hint"),
    [
        ("chat/completions", chat(max_token=5), "'max_token'. Did you mean 'max_tokens'?"),
        ("completions", {"model": MODEL, "prompt": "x", "temprature": 1}, "'temprature'. Did you mean 'temperature'?"),
        ("completions", {"model": MODEL, "prompt": "x", "topk": {}}, "'topk'. Did you mean 'top_k'?"),
        ("embeddings", {"model": MODEL, "inputs": "x"}, "'inputs'. Did you mean 'input'?"),
        ("responses", {"model": MODEL, "max_tokens": 9}, "'max_tokens'. Did you mean 'max_output_tokens'?"),
        ("chat/completions", chat(frobnicate=5), "'frobnicate'."),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
async def test_a_misspelled_field_is_told_the_right_one(
    client: httpx.AsyncClient, path: str, body: Any, hint: str
) -> None:
    got, error = await refused(client, f"/v1/{path}", body)
    assert (got, error["message"]) == (400, f"Unrecognized request argument: {hint}")


async def test_Q10_a_wrong_method_is_a_405_that_names_the_right_one(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/chat/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_bytes_that_are_no_http_are_not_echoed(engine_server: Server) -> None:
    port = int(engine_server.url.rpartition(":")[2])
    reader, writer = await raw(port, b"GET /<script>secret HTTP/9.9\r\nbad header\r\n\r\n")
    said = await reader.read()
    writer.close()
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"HTTP/1.1 400" in head or b"HTTP/1.0 400" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert b"secret" not in said
    assert b"aiohttp" not in said


async def test_health_and_models(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).json() == {"status": "ok"}
    listed = (await client.get("/v1/models")).json()
    (entry,) = listed["data"]
    assert (listed["object"], entry["id"], entry["object"], entry["max_model_len"]) == ("list", MODEL, "model", 8192)
    assert (await client.get(f"/v1/models/{MODEL}")).json() == entry
    missing = await client.get("/v1/models/none/such")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_request_that_fails_in_preparing_leaves_nothing_behind(
    engine_server: Server, client: httpx.AsyncClient
) -> None:
    await refused(client, "/v1/chat/completions", chat(max_tokens=9000, n=8))
    assert len(texts(await ask(client, n=8, max_tokens=1))) == 8

"""Group D: several streams are merged into one, and a single stream is passed on as it was sent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.conformance.reading import Reading
from tests.conformance.scene import SEED, Scene
from tests.conformance.settings import (
    FANOUT,
    NATIVE,
    ONE,
    everywhere,
    of_legs,
    of_native,
    of_one,
    settings,
)
from tests.fakes import quirks
from tests.fakes.behaviour import Quirk

ROLE = {"role": "assistant", "content": ""}
USAGE = {"include_usage": True}


def prelude(answer: Reading, n: int) -> list[tuple[int, Any]]:
    """Index and delta of the first n chunks."""
    first = [chunk["choices"][0] for chunk in answer.chunks[:n]]
    return [(choice["index"], choice["delta"]) for choice in first]


def last_choice_first(chunks: list[Any]) -> list[Any]:
    """All chunks of the last choice, then all of the one before it ..., then the usage."""
    return sorted(chunks, key=lambda chunk: -chunk["choices"][0]["index"] if chunk["choices"] else 1)


@of_legs
async def test_D1_the_prelude_stands_before_the_first_speaker(scene: Scene) -> None:
    held = asyncio.Event()
    for index in (0, 1):
        scene.choice_does(index, hold=held)
    asked = asyncio.create_task(scene.stream())
    await scene.upstream.until(lambda: len(scene.calls) == 3 and len(scene.upstream.open_calls) == 2)
    held.set()
    answer = await asked
    assert prelude(answer, 3) == [(index, ROLE) for index in range(3)]
    assert answer.order[3] == 2, "the first to speak"
    assert answer.texts == scene.said


@of_native
async def test_D1_the_prelude_stands_before_whoever_speaks_first(scene: Scene) -> None:
    scene.does(quirk=last_choice_first)
    answer = await scene.stream()
    assert prelude(answer, 3) == [(index, ROLE) for index in range(3)]
    assert answer.order[3] == 2
    assert answer.texts == scene.said


@of_one
async def test_D1_one_choice_has_its_role_first(scene: Scene) -> None:
    assert prelude(await scene.stream(), 1) == [(0, ROLE)]


@of_legs
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
async def test_D1_where_all_must_be_calls_their_roles_come_without_a_text(scene: Scene, choice: Any) -> None:
    """Like OpenAI: clients that show what they read would take an empty text for a text."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    answer = await scene.stream(tools=tools, tool_choice=choice)
    assert prelude(answer, 3) == [(index, ROLE | {"content": None}) for index in range(3)]


ROWS = [
    pytest.param({"quirk": quirks.role_repeated}, id="D2-role-repeated"),
    pytest.param({"quirk": quirks.role_null}, id="D2-role-null"),
    pytest.param({"quirk": quirks.role_empty}, id="D2-role-empty"),
    pytest.param({"role": False}, id="D3-no-role"),
    pytest.param({"quirk": quirks.id_per_choice}, id="D5-id-per-choice"),
    pytest.param({"quirk": quirks.created_per_chunk}, id="D5-created-per-chunk"),
    pytest.param({"quirk": quirks.finish_twice}, id="D7-finish-twice"),
    pytest.param({"quirk": quirks.after_the_finish}, id="D6-text-after-the-finish"),
    pytest.param({"quirk": quirks.finish_named_null}, id="null-in-quotes"),
    pytest.param({"done": False}, id="D10-no-done"),
    pytest.param({"quirk": quirks.surplus_choice}, id="surplus-choice"),
]


@everywhere
@pytest.mark.parametrize("asked", [{}, {"stream_options": USAGE}], ids=["", "usage"])
@pytest.mark.parametrize("does", ROWS)
async def test_D2_D3_D4_D5_D6_D7_D10_oddities_are_mended(
    scene: Scene, does: dict[str, Any], asked: dict[str, Any]
) -> None:
    """The reader refuses a second role, id, time or finish, an unknown index, and anything that comes too late."""
    scene.does(**does)
    answer = await scene.stream(**asked)
    assert answer.texts == scene.said
    assert answer.finishes == scene.stopped
    assert answer.done
    assert all(voice.deltas[0] == ROLE for voice in answer.voices)


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_D16_a_text_that_comes_as_a_number(scene: Scene, stream: bool) -> None:
    """As Cloudflare's Workers AI sends tokens of digits. A JSON answer of several choices is made from a stream."""
    if scene.setting.native:
        await scene.start(n="native", usage="stream")
    scene.does(quirk=quirks.numbers, pieces=lambda seed: ["[", str(seed), "]"])
    assert (await scene.either(stream)).texts == {index: f"[{SEED + index}]" for index in range(scene.n)}


@everywhere
async def test_D16_a_whole_text_that_is_a_number(scene: Scene) -> None:
    def change(answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "choices": [{**choice, "message": {"content": 7}} for choice in answer["choices"]]}

    scene.does(whole_quirk=change)
    assert (await scene.whole()).texts == dict.fromkeys(range(scene.n), "7")


@of_native
async def test_D4_choices_that_come_together_go_one_by_one(scene: Scene) -> None:
    scene.does(quirk=quirks.together)
    answer = await scene.stream()
    assert {len(chunk["choices"]) for chunk in answer.chunks} == {1}
    assert answer.texts == scene.said


@everywhere
async def test_D5_the_clients_model_everywhere(scene: Scene) -> None:
    await scene.start(models={"mine": "theirs"})
    answer = await scene.stream(model="mine")
    assert {chunk["model"] for chunk in answer.chunks} == {"mine"}


async def read_until(scene: Scene, seen: bytes, times: int, *, then: asyncio.Event) -> bytes:
    """Read a stream; once `seen` has come so many times, set `then`, which lets the upstream go on."""
    gateway = await scene.gateway()
    raw = b""
    sent = scene.fields(stream=True)
    async with gateway.client.stream("POST", "/v1/chat/completions", json=sent) as answer:
        async for data in answer.aiter_raw():
            raw += data
            if raw.count(seen) >= times:
                then.set()
    assert then.is_set()
    return raw


@everywhere
async def test_D6_a_finish_goes_out_at_once(scene: Scene) -> None:
    """Some choices finish; the upstream sends nothing more until the client has read that."""
    early = 2 if scene.setting is FANOUT else 1
    quirk = last_choice_first if scene.setting is NATIVE else None
    held = scene.choice_does(0, hold_after=3 if scene.setting is FANOUT else 6, quirk=quirk)
    raw = await read_until(scene, b'"stop"', early, then=held.go_on)
    assert raw.count(b'"stop"') == scene.n


@everywhere
@pytest.mark.parametrize("end", [{"finish": None}, {"finish": None, "done": False}], ids=["with done", "bare"])
async def test_D8_a_choice_without_a_finish_is_a_failure(scene: Scene, end: dict[str, Any]) -> None:
    scene.choice_does(1, **end)
    answer = await scene.stream()
    assert answer.error is not None
    assert sorted(answer.finishes) == ([] if scene.legs == 1 else [0, 2])


@of_native
async def test_D8_a_choice_that_never_began_is_fetched(scene: Scene) -> None:
    scene.first_call_does(width=2)
    answer = await scene.stream()
    assert answer.texts == scene.said
    assert [call.body.get("n") for call in scene.calls] == [3, None]


@everywhere
@pytest.mark.parametrize("asked", [{}, {"stream_options": USAGE}], ids=["", "usage"])
async def test_D9_done_comes_once_and_last(scene: Scene, asked: dict[str, Any]) -> None:
    scene.does(quirk=lambda chunks: [*chunks, b"data: [DONE]\n\n"])  # in addition to its own
    answer = await scene.stream(**asked)
    assert answer.frames.count(b"[DONE]") == 1
    assert answer.frames[-1] == b"[DONE]"
    assert answer.texts == scene.said


ODD_BYTES = [
    b'{"choices": [{"delta": {"content":"\\u00e9", "role":"assistant"}, "index":0, "x": 1e2}], "object":'
    b'"chat.completion.chunk", "model":"m", "id":"u", "created":1}',
    b'{ "id":"u", "object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0, "delta":'
    b'{"content":"\\/ "}, "finish_reason":null, "logprobs":null}]}',
    b'{"id":"u","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"finish_reason":"stop", "index":0,"delta":{}}]}',
]


@settings(NATIVE, ONE, why="what comes from several calls is written anew")
@pytest.mark.parametrize("segment", [None, 1])
async def test_D11_an_exact_wire_passes_byte_by_byte(scene: Scene, segment: int | None) -> None:
    await scene.start(wire="exact" if scene.setting.native else "auto")
    lines = [line.replace(b'"index":0', b'"index":%d' % index) for line in ODD_BYTES for index in range(scene.n)]
    frames = b"".join(b"data: " + data + b"\n\n" for data in [*lines, b"[DONE]"])
    scene.does(body=frames, content_type="text/event-stream", segment=segment)
    assert (await scene.send(stream=True)).content == frames


@of_legs
async def test_D15_a_stalled_call_delays_no_sibling(scene: Scene) -> None:
    stalled = scene.choice_does(0, hold_after=2)
    raw = await read_until(scene, b'"finish_reason":"stop"', 2, then=stalled.go_on)
    assert raw.count(b'"finish_reason":"stop"') == 3
    assert raw.endswith(b"data: [DONE]\n\n")


@everywhere
async def test_D16_joined_it_is_the_whole_answer(scene: Scene) -> None:
    scene.does(pieces=lambda seed: [f"<{seed}:{at}>" for at in range(200)], segment=100)
    streamed = await scene.stream()
    assert streamed.texts == (await scene.whole()).texts
    assert streamed.texts[0] == "".join(f"<{SEED}:{at}>" for at in range(200))


@everywhere
async def test_D17_no_number_of_ours_in_a_delta(scene: Scene) -> None:
    scene.does(pieces=lambda seed: [{"content": "a", "heat": seed}, "b"])
    numbers = [
        {key: value for key, value in delta.items() if isinstance(value, int | float)}
        for voice in (await scene.stream()).voices
        for delta in voice.deltas
    ]
    assert [found for found in numbers if found] == [{"heat": SEED + index} for index in range(scene.n)]


def in_messages(chunks: list[Any]) -> list[Any]:
    """Every delta is called a message."""
    return [quirks.with_choice(c, message=c["choices"][0].pop("delta")) if c["choices"] else c for c in chunks]


def as_one_message(chunks: list[Any]) -> list[Any]:
    """Each choice is one message, under the name of a whole answer."""
    return [_whole(c, chunks) for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]


def repeated(chunks: list[Any]) -> list[Any]:
    """MiniMax: the last chunk of a choice repeats all of it (GCWing/OpenBitFun#792). Here it also finishes it."""
    return [_whole(c, chunks) if c["choices"] and c["choices"][0]["finish_reason"] else c for c in chunks]


def _whole(finish: dict[str, Any], chunks: list[Any]) -> dict[str, Any]:
    index = finish["choices"][0]["index"]
    deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"] and c["choices"][0]["index"] == index]
    message = {"role": "assistant", "content": "".join(delta.get("content") or "" for delta in deltas)}
    choice = {"index": index, "message": message, "finish_reason": "stop"}
    return {**finish, "object": "chat.completion", "choices": [choice]}


@everywhere
@pytest.mark.parametrize("messages", [in_messages, as_one_message, repeated])
async def test_D18_messages_in_place_of_deltas(scene: Scene, messages: Quirk) -> None:
    scene.does(quirk=messages)
    answer = await scene.stream()
    assert (answer.texts, answer.finishes) == (scene.said, scene.stopped)


@everywhere
async def test_D18_a_whole_answer_in_one_event(scene: Scene) -> None:
    said = [{"index": i, "message": {"content": "x"}, "finish_reason": "stop"} for i in range(scene.n)]
    answer = json.dumps({"choices": said if scene.setting.native else said[:1]}).encode()
    scene.does(body=b"data: %b\n\ndata: [DONE]\n\n" % answer, content_type="text/event-stream")
    assert (await scene.whole()).texts == dict.fromkeys(range(scene.n), "x")


@everywhere
async def test_D18_a_message_that_is_none(scene: Scene) -> None:
    await scene.start(retries={"per_leg": 0})
    scene.does(body=b'data: {"choices": [{"message": "x"}]}\n\n', content_type="text/event-stream")
    assert (await scene.refused(502))["code"] == "upstream_error"

"""Group Q: upstreams with `n` of their own, and how the gateway finds out whether they have it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.scene import COMPLETIONS, SEED, Scene
from tests.conformance.settings import FANOUT, everywhere, of_legs, of_native, of_several, settings
from tests.fakes import quirks
from tests.fakes.behaviour import Behaviour, said
from tests.fakes.upstream import FakeUpstream, Seen
from tests.gateway.conftest import Start

finding_out = settings(why="`n: auto` knows neither setting: it finds out")


@pytest.fixture
async def auto(upstream: FakeUpstream, start: Start) -> Scene:
    """A scene whose gateway has to find out; the upstream ignores `n` until its behaviour is changed."""
    scene = Scene(FANOUT, upstream, start)
    await scene.start(n="auto")
    return scene


FORMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
WIDE = {index: said(SEED + index) for index in range(4)}


def widths(scene: Scene) -> list[int | None]:
    """The `n` of each call so far."""
    return [call.body.get("n") for call in scene.calls]


@of_native
@FORMS
async def test_Q4_native_is_one_call_with_n(scene: Scene, stream: bool) -> None:
    answer = await scene.send(n=4, stream=stream)
    assert widths(scene) == [4]
    assert answer.headers["x-nproxy-mode"] == "native"
    assert answer.headers["x-nproxy-legs"] == "1"


@of_legs
async def test_Q4_fanned_out_is_n_calls_without(scene: Scene) -> None:
    answer = await scene.send(n=4)
    assert widths(scene) == [None] * 4
    assert (answer.headers["x-nproxy-mode"], answer.headers["x-nproxy-legs"]) == ("fanout", "4")


@of_native
@FORMS
async def test_Q4_native_up_to_a_width(scene: Scene, stream: bool) -> None:
    await scene.start(n={"native_up_to": 4})
    scene.does(width=4)
    assert (await scene.either(stream, n=10)).texts == {index: said(SEED + index) for index in range(10)}
    assert sorted(call.body["n"] for call in scene.calls) == [2, 4, 4]


@finding_out
@FORMS
async def test_Q6_n_is_ignored(auto: Scene, stream: bool) -> None:
    assert (await auto.either(stream, n=4)).texts == WIDE
    assert widths(auto) == [4, None, None, None], "asked natively once, and topped up"
    assert (await auto.either(stream, n=4)).texts == WIDE
    assert widths(auto)[4:] == [None] * 4, "and remembered"
    assert (await auto.send(n=4)).headers["x-nproxy-mode"] == "fanout"


@finding_out
@FORMS
async def test_Q6_n_is_native(auto: Scene, stream: bool) -> None:
    auto.does(n="native")
    for _ in range(2):
        assert (await auto.either(stream, n=4)).texts == WIDE
    assert widths(auto) == [4, 4]
    status = (await (await auto.gateway()).client.get("/status")).json()
    assert status["upstreams"][0]["learned"] == {"fake-model": {"n": None}}


@finding_out
@FORMS
async def test_Q6_n_is_refused(auto: Scene, stream: bool) -> None:
    auto.does(n="refuse")
    for _ in range(2):
        assert (await auto.either(stream, n=4)).texts == WIDE
    assert widths(auto) == [4] + [None] * 8, "asked natively once, and not again"


@finding_out
async def test_Q6_a_greedy_refusal_teaches_nothing(auto: Scene) -> None:
    auto.does(n="refuse")
    for _ in range(2):
        assert (await auto.whole(n=4, temperature=0)).texts == WIDE
    assert widths(auto) == [4, None, None, None, None] * 2


@finding_out
async def test_Q6_a_refusal_teaches_only_what_then_succeeds(auto: Scene) -> None:
    refusal = b'{"error": {"message": "n must be 1", "param": "n"}}'
    auto.does(status=400, body=refusal)
    await auto.refused(400, n=4)
    auto.does(n="native")
    assert (await auto.whole(n=4)).texts == WIDE
    assert [width for width in widths(auto) if width is not None] == [4, 4], "asked natively again"


@finding_out
async def test_R7_what_is_refused_above_the_slots_is_split(auto: Scene) -> None:
    """llama.cpp's refusal states the width that it accepts."""
    refusal = b'{"error": {"code": 400, "message": "Field \'n\': Value must be between 1 <= value <= 2", "type": "x"}}'
    auto.does(n="native")
    auto.first_call_does(status=400, body=refusal)
    assert (await auto.whole(n=5)).texts == {index: said(SEED + index) for index in range(5)}
    wide, *narrow = widths(auto)
    assert wide == 5
    assert sorted(narrow, key=str) == [2, 2, None], "calls beside each other arrive in any order"
    assert (await auto.whole(n=5)).texts == {index: said(SEED + index) for index in range(5)}
    assert sorted(widths(auto)[4:], key=str) == [2, 2, None], "learned"


@of_several
async def test_Q6_stream_options_that_are_refused(scene: Scene) -> None:
    scene.does(refuse=("stream_options",))
    for _ in range(2):
        assert (await scene.stream()).texts == scene.said
    assert len(scene.calls) == 3 * scene.legs, "asked with them once"


@everywhere
async def test_Q6_a_client_that_asks_for_usage_gets_it_or_is_told(scene: Scene) -> None:
    scene.does(refuse=("stream_options",))
    assert (await scene.stream()).texts == scene.said
    error = await scene.refused(400, stream=True, stream_options={"include_usage": True})
    assert "stream_options" in error["message"]


@finding_out
@pytest.mark.parametrize("status", [400, 422, 500, 501])
async def test_Q6_n_is_refused_in_other_words(auto: Scene, status: int) -> None:
    """llama.cpp answers with 500."""
    refusal = b'{"error": {"code": 500, "message": "Only one completion choice is allowed", "type": "server_error"}}'
    auto.upstream.choose = lambda call: Behaviour(status=status, body=refusal) if call.body.get("n", 1) > 1 else None
    for _ in range(2):
        assert (await auto.whole(n=4)).texts == WIDE
    assert widths(auto) == [4] + [None] * 8


@finding_out
async def test_Q6_n_that_is_refused_beside_another_field_is_not_refused(auto: Scene) -> None:
    refusal = b'{"error": {"message": "n > 1 is not supported with tools", "param": "n"}}'
    native = auto.does(n="native")
    auto.upstream.choose = lambda call: (
        Behaviour(status=400, body=refusal) if call.body.get("n", 1) > 1 and "tools" in call.body else native
    )
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert (await auto.whole(n=4, tools=tools)).texts == WIDE
    assert (await auto.whole(n=4)).texts == WIDE
    assert widths(auto) == [4, None, None, None, None, 4]


@finding_out
async def test_Q6_a_short_greedy_answer_teaches_nothing(auto: Scene) -> None:
    native = auto.does(n="native")
    auto.upstream.choose = lambda call: Behaviour() if call.body.get("temperature") == 0 else native
    bodies: list[dict[str, Any]] = [{"temperature": 0}, {}]
    for fields in bodies:
        assert (await auto.whole(n=4, **fields)).texts == WIDE
    assert widths(auto) == [4, None, None, None, 4]


@finding_out
async def test_Q6_a_width_that_has_worked_is_not_given_up_for_one_odd_answer(auto: Scene) -> None:
    auto.does(n="native")
    assert (await auto.whole(n=4)).texts == WIDE
    for widest in (4, 1):
        auto.first_call_does(n="native", width=1)
        before = len(auto.calls)
        assert (await auto.whole(n=4)).texts == WIDE
        assert widths(auto)[before:] == [4, None, None, None]
        before = len(auto.calls)
        if widest == 4:
            assert (await auto.whole(n=4)).texts == WIDE
            assert widths(auto)[before:] == [4]
    auto.first_call_does(n="native", width=1)
    assert (await auto.whole(n=4)).texts == WIDE
    assert (await auto.whole(n=4)).texts == WIDE
    assert widths(auto)[-4:] == [None] * 4, "twice in a row is not odd"


@of_native
async def test_Q4_prompt_lists_go_in_one_call(scene: Scene) -> None:
    await scene.whole(COMPLETIONS, prompt=["a", "b"], n=2)
    (call,) = scene.calls
    assert (call.body["prompt"], call.body["n"]) == (["a", "b"], 2)


@finding_out
@FORMS
@pytest.mark.parametrize("n", ["ignore", "native", "refuse"])
async def test_Q6_J2_prompts_are_not_mixed_up_meanwhile(auto: Scene, n: str, stream: bool) -> None:
    """Two choices for two prompts with two choices each: the indices would not show to which prompt they belong."""
    auto.does(n=n)
    own = {index: ("a" if index < 2 else "b") + said(SEED + index % 2) for index in range(4)}
    for _ in range(2):
        assert (await auto.either(stream, COMPLETIONS, prompt=["a", "b"], n=2, echo=True)).texts == own


def refuses_greedy_n(call: Seen) -> Behaviour | None:
    """ms-swift, whose default temperature means greedy decoding."""
    message = "Greedy methods without beam search do not support `num_return_sequences` different than 1 (got 4)."
    body = json.dumps({"message": message, "object": "error"}).encode()
    greedy = call.body.get("n", 1) > 1 and not call.body.get("temperature")
    return Behaviour(status=400, body=body, content_type="application/json") if greedy else None


@finding_out
@FORMS
async def test_Q6_A14_n_that_is_refused_for_the_servers_default_temperature(auto: Scene, stream: bool) -> None:
    auto.does(n="native")
    auto.upstream.choose = refuses_greedy_n
    assert (await auto.either(stream, n=4)).texts == WIDE
    assert widths(auto) == [4, None, None, None, None]
    assert (await auto.either(stream, n=4, temperature=1)).texts == WIDE
    assert widths(auto)[5:] == [4], "it has n"


def breaks_streams_of_n(call: Seen) -> Behaviour | None:
    """ms-swift and LLaMA-Factory: the head of an answer, and nothing more."""
    several = call.body.get("stream") and call.body.get("n", 1) > 1
    return Behaviour(n="native", end_after=0, end="cut") if several else None


def finishes_the_first_only(chunks: list[Any]) -> list[Any]:
    """LiteLLM: only the first choice gets a finish_reason."""
    return [
        quirks.with_choice(c, finish_reason=None) if c["choices"] and c["choices"][0]["index"] else c for c in chunks
    ]


def all_in_the_first(chunks: list[Any]) -> list[Any]:
    """LiteLLM's legacy completions: the texts of all choices have the same index."""
    return [quirks.with_choice(c, index=0) if c["choices"] else c for c in chunks]


@finding_out
async def test_Q6_streams_that_break_off_for_n_are_asked_for_one_by_one(auto: Scene) -> None:
    auto.does(n="native")
    auto.upstream.choose = breaks_streams_of_n
    assert (await auto.whole(n=4)).texts == WIDE
    for _ in range(2):
        assert (await auto.stream(n=4)).texts == WIDE
    assert widths(auto)[-4:] == [None] * 4, "remembered"
    assert (await auto.whole(n=4)).texts == WIDE
    assert widths(auto)[-1] == 4, "whole answers have n"
    status = (await (await auto.gateway()).client.get("/status")).json()
    assert status["upstreams"][0]["learned"] == {"fake-model": {"n": None, "stream_n": False}}


@finding_out
@pytest.mark.parametrize("quirk", [finishes_the_first_only, all_in_the_first])
async def test_Q6_streams_that_mix_choices_up_are_asked_for_one_by_one_from_then_on(auto: Scene, quirk: Any) -> None:
    auto.does(n="native", quirk=quirk)
    assert (await auto.whole(n=4)).texts == WIDE
    await auto.send(n=4, stream=True)  # this answer cannot be repaired
    auto.does(n="native", quirk=None)
    assert (await auto.stream(n=4)).texts == WIDE
    assert widths(auto)[-4:] == [None] * 4


def refuses_lists(call: Seen) -> Behaviour | None:
    """Ollama, with its error message."""
    message = "json: cannot unmarshal array into Go struct field CompletionRequest.prompt of type string"
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}})
    listed = isinstance(call.body.get("prompt"), list)
    return Behaviour(status=400, body=body.encode(), content_type="application/json") if listed else None


@finding_out
@FORMS
@pytest.mark.parametrize("prompts", [["a"], ["a", "b", "c"]], ids=len)
async def test_Q6_J4_a_refused_list_of_prompts_is_asked_for_one_by_one(
    auto: Scene, stream: bool, prompts: list[str]
) -> None:
    auto.upstream.choose = refuses_lists
    own = {place: prompt + said(SEED) for place, prompt in enumerate(prompts)}
    answer = await auto.either(stream, COMPLETIONS, prompt=prompts, n=1, echo=True)
    assert answer.texts == own
    assert auto.calls[0].body["prompt"] == prompts
    assert sorted(call.body["prompt"] for call in auto.calls[1:]) == prompts
    assert await auto.anomalies("prompt_lists_refused") == 1
    before = len(auto.calls)
    assert (await auto.either(stream, COMPLETIONS, prompt=prompts, n=1, echo=True)).texts == own
    assert sorted(call.body["prompt"] for call in auto.calls[before:]) == prompts, "and remembered"
    status = (await (await auto.gateway()).client.get("/status")).json()
    assert status["upstreams"][0]["learned"] == {"fake-model": {"prompt_lists": False}}


@of_native
@FORMS
async def test_C7_J2_prompts_that_come_short_are_no_answer(scene: Scene, stream: bool) -> None:
    """It is unclear whose choices came. They are asked for again, unless the client has read of them."""
    scene.does(width=1)
    answer = await scene.send(COMPLETIONS, prompt=["a", "b"], n=2, stream=stream)
    if stream:
        assert b'{"error":' in answer.content and b"[DONE]" not in answer.content
        return
    assert answer.status_code == 200 and len(scene.calls) == 5
    assert sorted(call.body["prompt"] for call in scene.calls[1:]) == ["a", "a", "b", "b"]
    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1, 2, 3]

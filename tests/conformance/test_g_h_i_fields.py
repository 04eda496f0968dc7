"""Groups G, H and I: tools, reasoning, stop and finish: the fields of a choice stay with that choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.conformance.reading import Reading, ToolCall
from tests.conformance.scene import SEED, Scene
from tests.conformance.settings import everywhere, of_several
from tests.fakes.behaviour import Piece, said


def call(index: int, id: str | None = None, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name is not None else {})
    return {"index": index} | ({"id": id, "type": "function"} if id is not None else {}) | {"function": function}


def two_calls(seed: int) -> Sequence[Piece]:
    """Parallel calls whose arguments alternate; id and name are in every piece."""
    return [
        {"tool_calls": [call(at, f"{name}-{seed}", name, arguments)]}
        for arguments in ('{"n":', "1}")
        for at, name in enumerate(("f", "g"))
    ]


def expected_calls(index: int) -> dict[int, ToolCall]:
    return {at: ToolCall(f"{name}-{SEED + index}", name, '{"n":1}') for at, name in enumerate(("f", "g"))}


@everywhere
async def test_G1_G3_G5_calls_count_from_0_and_are_named_once(scene: Scene) -> None:
    """The reader refuses calls that do not count from 0, and repeated names."""
    scene.does(pieces=two_calls, finish="tool_calls")
    answer = await scene.stream()
    assert [voice.tools for voice in answer.voices] == [expected_calls(index) for index in range(scene.n)]
    assert answer.finishes == dict.fromkeys(range(scene.n), "tool_calls")


@everywhere
async def test_G1_G5_calls_of_a_whole_answer(scene: Scene) -> None:
    scene.does(pieces=two_calls, finish="tool_calls")
    answer = await scene.whole()
    calls = [choice["message"]["tool_calls"] for choice in answer.choices]
    for index, two in enumerate(calls):
        assert [(c["id"], c["function"]) for c in two] == [
            (known.id, {"arguments": known.arguments, "name": known.name}) for known in expected_calls(index).values()
        ]
        assert all("index" not in c for c in two)


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_G1_G10_arguments_that_are_an_object_are_a_text(scene: Scene, stream: bool) -> None:
    """As llama.cpp sent them in March 2026 (ggml-org/llama.cpp#20198), and MiniMax in streams."""
    asked: dict[str, Any] = call(0, "c", "f") | {"function": {"name": "f", "arguments": {"n": 1}}}

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": None, "tool_calls": [asked]}
        return {**answer, "choices": [{**choice, "message": message} for choice in answer["choices"]]}

    if not stream:
        scene.does(whole_quirk=change)
        calls = [choice["message"]["tool_calls"] for choice in (await scene.whole()).choices]
        assert [[c["function"]["arguments"] for c in one] for one in calls] == [['{"n":1}']] * scene.n
        return
    scene.does(pieces=lambda seed: [{"tool_calls": [asked]}], finish="tool_calls")
    voices = (await scene.stream()).voices
    assert [voice.tools for voice in voices] == [{0: ToolCall("c", "f", '{"n":1}')}] * scene.n


def numbered_calls(seed: int) -> Sequence[Piece]:
    """Two calls whose ids are numbers, each in two pieces."""
    calls = [(0, "f"), (seed, "g")]
    return [
        {"tool_calls": [call(at, name=name, arguments=arguments) | {"id": id, "type": "function"}]}
        for arguments in ('{"n":', "1}")
        for at, (id, name) in enumerate(calls)
    ]


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_G10_ids_that_are_numbers_are_texts(scene: Scene, stream: bool) -> None:
    """NVIDIA's GLM 5.1 (anomalyco/opencode#25786), MiniMax behind OpenRouter (Kilo-Org/kilocode#5816)."""
    scene.does(pieces=numbered_calls, finish="tool_calls")
    expected = [["0", str(SEED + index)] for index in range(scene.n)]
    if stream:
        voices = (await scene.stream()).voices
        assert [[known.id for known in voice.tools.values()] for voice in voices] == expected
    else:
        messages = [choice["message"] for choice in (await scene.whole()).choices]
        assert [[known["id"] for known in message["tool_calls"]] for message in messages] == expected


def ids_of_their_own(seed: int) -> Sequence[Piece]:
    """One call in three pieces, each with another id, as some servers send them."""
    said = [call(0, f"f-{seed}", "f")] + [
        call(0, f"{at}-{seed}", None, part) for at, part in enumerate(('{"n":', "1}"))
    ]
    return [{"tool_calls": [piece]} for piece in said]


@everywhere
async def test_G9_a_call_whose_id_changes_is_one(scene: Scene) -> None:
    scene.does(pieces=ids_of_their_own, finish="tool_calls")
    answer = await scene.stream()
    assert [voice.tools for voice in answer.voices] == [{0: expected_calls(index)[0]} for index in range(scene.n)]


def some_call(seed: int) -> Sequence[Piece]:
    return two_calls(seed) if seed == SEED + 1 else ["text"]


@of_several
@pytest.mark.parametrize("stream", [False, True])
async def test_G6_one_calls_and_the_others_speak(scene: Scene, stream: bool) -> None:
    scene.does(pieces=some_call, finish=lambda seed: "tool_calls" if seed == SEED + 1 else "stop")
    answer = await scene.either(stream)
    assert answer.finishes == {0: "stop", 1: "tool_calls", 2: "stop"}
    assert answer.texts == {0: "text", 1: "", 2: "text"}


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_G7_stop_beside_a_call_is_the_upstreams_word(scene: Scene, stream: bool) -> None:
    scene.does(pieces=two_calls, finish="stop")
    assert (await scene.either(stream)).finishes == scene.stopped


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_G8_the_old_function_call_passes(scene: Scene, stream: bool) -> None:
    function = {"name": "f", "arguments": "{}"}
    scene.does(pieces=lambda seed: [{"function_call": function}], finish="function_call")
    answer = await scene.either(stream)
    if isinstance(answer, Reading):
        assert [voice.deltas[1] for voice in answer.voices] == [{"function_call": function}] * scene.n
    else:
        assert [choice["message"]["function_call"] for choice in answer.choices] == [function] * scene.n


@everywhere
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("stream", [False, True])
async def test_H1_reasoning_passes_per_choice(scene: Scene, key: str, stream: bool) -> None:
    scene.does(pieces=lambda seed: [{key: f"{seed} is"}, {key: " odd"}, "so"])
    answer = await scene.either(stream)
    if isinstance(answer, Reading):
        thought = ["".join(delta.get(key, "") for delta in voice.deltas) for voice in answer.voices]
    else:
        thought = [choice["message"][key] for choice in answer.choices]
    assert thought == [f"{SEED + index} is odd" for index in range(scene.n)]
    assert answer.texts == dict.fromkeys(range(scene.n), "so")


@of_several
async def test_H2_reasoning_tokens_are_summed(scene: Scene) -> None:
    def count(seeds: list[int]) -> dict[str, Any]:
        details = {"completion_tokens_details": {"reasoning_tokens": 2 * len(seeds)}}
        return {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, **details}

    scene.does(usage=count)
    told = (await scene.whole()).usage
    assert told is not None
    assert told["completion_tokens_details"] == {"reasoning_tokens": 6}


@everywhere
@pytest.mark.parametrize("content", [None, ""])
async def test_H3_cut_while_reasoning(scene: Scene, content: str | None) -> None:
    scene.does(pieces=lambda seed: [{"reasoning": "hm", "content": content}], finish="length")
    answer = await scene.whole()
    assert [choice["message"]["content"] for choice in answer.choices] == [content] * scene.n
    assert answer.finishes == dict.fromkeys(range(scene.n), "length")
    assert (await scene.stream()).finishes == answer.finishes


@everywhere
async def test_H4_lists_with_their_own_index_are_untouched(scene: Scene) -> None:
    details = [{"index": 3, "type": "reasoning.text", "text": "x"}]
    scene.does(pieces=lambda seed: [{"reasoning_details": details}, "y"])
    answer = await scene.stream()
    assert [voice.deltas[1]["reasoning_details"] for voice in answer.voices] == [details] * scene.n


@everywhere
async def test_I1_stop_goes_to_every_call(scene: Scene) -> None:
    await scene.whole(stop=["a", "b"])
    assert [call.body["stop"] for call in scene.calls] == [["a", "b"]] * scene.legs


REASONS = {SEED: "stop", SEED + 1: "length", SEED + 2: "content_filter"}


@of_several
@pytest.mark.parametrize("stream", [False, True])
async def test_I2_each_its_own_reason(scene: Scene, stream: bool) -> None:
    scene.does(finish=REASONS.__getitem__)
    answer = await scene.either(stream)
    assert answer.finishes == {0: "stop", 1: "length", 2: "content_filter"}
    assert answer.texts == scene.said


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_I4_stop_reason_is_kept(scene: Scene, stream: bool) -> None:
    def change(chunk: dict[str, Any]) -> dict[str, Any]:
        reasons = [{**c, "stop_reason": f"END{c['index']}"} if c["finish_reason"] else c for c in chunk["choices"]]
        return {**chunk, "choices": reasons}

    scene.does(quirk=lambda chunks: [change(chunk) for chunk in chunks], whole_quirk=change)
    answer = await scene.either(stream)
    last = [v.choices[-1] for v in answer.voices] if isinstance(answer, Reading) else answer.choices
    own = [f"END{index}" if scene.legs == 1 else "END0" for index in range(scene.n)]
    assert [choice["stop_reason"] for choice in last] == own
    assert answer.texts == {index: said(SEED + index) for index in range(scene.n)}

"""Group F: log probabilities stay with their choice and their text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.reading import Reading
from tests.conformance.scene import COMPLETIONS, SEED, Scene
from tests.conformance.settings import FANOUT, NATIVE, everywhere, of_native, of_several, settings
from tests.fakes import quirks
from tests.fakes.behaviour import words
from tests.gateway.conftest import CHAT, body

before_the_plan = settings(FANOUT, NATIVE, why="it is refused before there is a plan")


def tokens(logprobs: dict[str, Any]) -> list[str]:
    return [entry["token"] for entry in logprobs["content"]]


@everywhere
async def test_F1_each_entry_rides_with_its_text(scene: Scene) -> None:
    answer = await scene.stream(logprobs=True)
    assert answer.texts == scene.said
    for index, voice in enumerate(answer.voices):
        spoken = [choice for choice in voice.choices if choice["delta"].get("content")]
        assert [tokens(choice["logprobs"]) for choice in spoken] == [[piece] for piece in words(SEED + index)]
        assert all(choice["logprobs"].keys() == {"content", "refusal"} for choice in spoken)


@everywhere
async def test_F1_every_choice_has_its_own(scene: Scene) -> None:
    answer = await scene.whole(logprobs=True)
    assert [tokens(choice["logprobs"]) for choice in answer.choices] == [words(SEED + i) for i in range(scene.n)]


@of_native
async def test_F1_so_it_is_where_a_stream_was_folded(scene: Scene) -> None:
    await scene.start(n="native", usage="stream")
    answer = await scene.whole(logprobs=True)
    assert [tokens(choice["logprobs"]) for choice in answer.choices] == [words(SEED + i) for i in range(scene.n)]


def calling(seed: int) -> list[Any]:
    """A tool call in two pieces."""
    function = {"name": "f", "arguments": '{"seed": '}
    first = {"index": 0, "id": f"call-{seed}", "type": "function", "function": function}
    return [{"tool_calls": [first]}, {"tool_calls": [{"index": 0, "function": {"arguments": f"{seed}}}"}}]}]


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_F1_never_null_beside_tools(scene: Scene, stream: bool) -> None:
    scene.does(pieces=calling)
    answer = await scene.either(stream, logprobs=True)
    if isinstance(answer, Reading):
        given = [c["logprobs"] for voice in answer.voices for c in voice.choices if c["delta"].get("tool_calls")]
        assert len(given) == 2 * scene.n
    else:
        given = [choice["logprobs"] for choice in answer.choices]
    assert all(logprobs is not None for logprobs in given)


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_F2_a_refusal_is_told_once(scene: Scene, stream: bool) -> None:
    scene.does(refuse=("logprobs",))
    error = await scene.refused(400, logprobs=True, stream=stream)
    assert error["message"] == "Unrecognized request argument supplied: logprobs"
    assert len(scene.calls) <= scene.legs, "nobody is asked again"


@everywhere
async def test_F3_not_asked_for_is_null(scene: Scene) -> None:
    whole = await scene.whole(logprobs=False)
    assert [choice["logprobs"] for choice in whole.choices] == [None] * scene.n
    streamed = await scene.stream(logprobs=False)
    assert all(choice["logprobs"] is None for voice in streamed.voices for choice in voice.choices)


@everywhere
async def test_F4_legacy_offsets_run_on(scene: Scene) -> None:
    """The upstream's offsets start at 0 in each chunk."""
    answer = await scene.stream(COMPLETIONS, logprobs=1)
    for voice in answer.voices:
        given = [choice["logprobs"] for choice in voice.choices if choice["logprobs"]]
        places = [offset for logprobs in given for offset in logprobs["text_offset"]]
        texts = [token for logprobs in given for token in logprobs["tokens"]]
        assert places == [len("".join(texts[:at])) for at in range(4)]


def silent_at_first(chunks: list[Any]) -> list[Any]:
    """Log probabilities come with the last text only, and their offsets start at 0."""
    texts = [at for at, c in enumerate(chunks) if c["choices"] and c["choices"][0]["text"]]
    late = set(texts[-len({chunks[at]["choices"][0]["index"] for at in texts}) :])
    return [
        c if at in late or not c["choices"] else quirks.with_choice(c, logprobs=None) for at, c in enumerate(chunks)
    ]


@everywhere
async def test_F4_texts_without_log_probabilities_count_too(scene: Scene) -> None:
    scene.does(quirk=silent_at_first)
    answer = await scene.stream(COMPLETIONS, logprobs=1)
    for voice in answer.voices:
        (given,) = (choice["logprobs"] for choice in voice.choices if choice["logprobs"])
        assert given["text_offset"] == [len(voice.text) - len(given["tokens"][0])]


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_F8_minus_infinity_is_told_as_openai_tells_it(scene: Scene, stream: bool) -> None:
    entry = {"token": "t", "logprob": float("-inf"), "bytes": None, "top_logprobs": []}

    def change(chunk: dict[str, Any]) -> dict[str, Any]:
        odd = {"content": [entry], "refusal": None}
        return {**chunk, "choices": [{**choice, "logprobs": odd} for choice in chunk["choices"]]}

    scene.does(quirk=quirks.each(change), whole_quirk=change)
    answer = await scene.either(stream, logprobs=True)
    choices = [c for v in answer.voices for c in v.choices] if isinstance(answer, Reading) else answer.choices
    told = [c["logprobs"]["content"][0]["logprob"] for c in choices if c["logprobs"]]
    assert told == [-9999.0] * len(told)
    assert len(told) >= scene.n


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_F5_bytes_of_split_tokens_pass(scene: Scene, stream: bool) -> None:
    halves: list[dict[str, Any]]
    halves = [{"token": "\ufffd", "logprob": -0.1234567890123456, "bytes": [240, 159]}, {"token": "x", "bytes": None}]
    odd = {"content": [{**half, "top_logprobs": [half]} for half in halves], "refusal": None}

    def change(chunk: dict[str, Any]) -> dict[str, Any]:
        said = [c for c in chunk["choices"] if c.get("delta", {}).get("content") or "message" in c]
        return {**chunk, "choices": [{**c, "logprobs": odd} if c in said else c for c in chunk["choices"]]}

    scene.does(quirk=lambda chunks: [change(chunk) for chunk in chunks], whole_quirk=change)
    answer = await scene.either(stream, logprobs=True)
    if isinstance(answer, Reading):
        assert all(choice["logprobs"] in (None, odd) for voice in answer.voices for choice in voice.choices)
        assert [[c["logprobs"] for c in v.choices].count(odd) for v in answer.voices] == [4] * scene.n
    else:
        assert [choice["logprobs"] for choice in answer.choices] == [odd] * scene.n


@before_the_plan
async def test_F6_top_logprobs_need_logprobs(scene: Scene) -> None:
    answer = await (await scene.gateway()).post(body(CHAT, n=2, top_logprobs=2))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "top_logprobs"
    assert scene.calls == []


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_F7_the_first_echoed_token_has_none(scene: Scene, stream: bool) -> None:
    answer = await scene.either(stream, COMPLETIONS, echo=True, logprobs=1)
    voices = (
        [voice.choices for voice in answer.voices] if isinstance(answer, Reading) else [[c] for c in answer.choices]
    )
    for choices in voices:
        scores = [score for c in choices if c["logprobs"] for score in c["logprobs"]["token_logprobs"]]
        assert scores == [None, -0.5, -0.5, -0.5, -0.5]


@of_several
async def test_F1_a_choice_without_is_null_and_its_siblings_are_not(scene: Scene) -> None:
    scene.choice_does(1, logprobs=False)
    answer = await scene.whole(logprobs=True)
    expected = [True] * 3 if scene.legs == 3 else [False] * 3
    if scene.legs == 3:
        expected[1] = False
    assert [choice["logprobs"] is not None for choice in answer.choices] == expected

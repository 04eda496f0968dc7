"""Group R: faults of servers with `n` are repaired; and recorded answers of real servers, byte by byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.reading import Whole, read_stream
from tests.conformance.scene import Scene
from tests.conformance.settings import NATIVE, everywhere, of_native, settings
from tests.fakes import quirks
from tests.fakes.answers import usage
from tests.fakes.behaviour import MODEL
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import CHAT, Start
from tests.transcripts.recorded import SERVERS, Transcript, load, names

ROLE = {"role": "assistant", "content": ""}
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}


def last_choice_first(chunks: list[Any]) -> list[Any]:
    return sorted(chunks, key=lambda chunk: -chunk["choices"][0]["index"] if chunk["choices"] else 1)


@everywhere
@pytest.mark.parametrize(
    "quirk",
    [
        pytest.param(last_choice_first, id="R1-out-of-order"),
        pytest.param(quirks.role_with_the_first_token, id="R1-with-the-first-token"),
        pytest.param(quirks.composed(quirks.role_with_the_first_token, last_choice_first), id="R1-both"),
        pytest.param(quirks.id_per_choice, id="R2-id-per-choice"),
        pytest.param(quirks.usage_per_choice, id="R3-usage-per-choice"),
        pytest.param(lambda chunks: [b"data: null\n\n", *chunks], id="R8-null"),
        pytest.param(lambda chunks: [b"event: ping\ndata: {}\n\n", *chunks], id="R8-ping"),
    ],
)
async def test_R1_R2_R3_R8_streams_of_other_servers(scene: Scene, quirk: Any) -> None:
    scene.does(quirk=quirk)
    answer = await scene.stream(**USAGE)
    assert answer.texts == scene.said
    assert answer.usage == usage(5, 4 * scene.n)
    if scene.n > 1:
        assert [c["choices"][0]["delta"] for c in answer.chunks[:3]] == [ROLE] * 3
        assert answer.order[:3] == [0, 1, 2]


@of_native
async def test_R5_tool_indices_that_carry_the_choice(scene: Scene) -> None:
    """TensorRT-LLM."""

    def calling(chunk: dict[str, Any]) -> dict[str, Any]:
        if not (quirks.delta_of(chunk) or {}).get("content"):
            return chunk
        index = chunk["choices"][0]["index"]
        function = {"name": "f", "arguments": "{}"}
        called = {"index": index, "id": f"call-{index}", "type": "function", "function": function}
        return quirks.with_choice(chunk, delta={"tool_calls": [called]})

    scene.does(pieces=lambda seed: ["x"], quirk=quirks.each(calling), frame=lambda data: b"data: " + data + b" \n\n")
    answer = await scene.stream()
    assert [[(at, tool.id) for at, tool in v.tools.items()] for v in answer.voices] == [
        [(0, f"call-{index}")] for index in range(3)
    ]


@settings(NATIVE, why="`n: fanout` is the way out")
async def test_R6_one_seed_for_all_choices(scene: Scene) -> None:
    """SGLang: equal answers are passed on as they are; with fan-out they differ."""
    scene.does(
        whole_quirk=lambda answer: {
            **answer,
            "choices": [{**choice, "message": answer["choices"][0]["message"]} for choice in answer["choices"]],
        }
    )
    assert set((await scene.whole()).texts.values()) == {scene.said[0]}
    await scene.start(n="fanout")
    scene.does(n="ignore")
    assert (await scene.whole()).texts == scene.said


# ---- recorded answers

WITHOUT_N = ("transformers-serve", "mlx-lm", "ollama")
"""The recorded servers that ignore `n`."""


def taken() -> list[tuple[str, str]]:
    """Recorded answers of status 200 to requests that nproxy accepts and passes on unchanged."""
    found = []
    for server in SERVERS:
        for name in names(server):
            transcript = load(server, name)
            fields = asked(transcript)
            own_work = fields.get("best_of", fields.get("n", 1)) != fields.get("n", 1)
            if transcript.status == 200 and type(fields.get("n", 1)) is int and not own_work:
                found.append((server, name))
    return found


def asked(transcript: Transcript) -> dict[str, Any]:
    """The recorded request; if only the answer was recorded, a request that it may have answered."""
    plain = {"model": MODEL, "messages": [{"role": "user", "content": "Name a color."}]}
    fields: dict[str, Any] = json.loads(transcript.request) if transcript.request else plain
    return fields


def texts_in(transcript: Transcript) -> dict[int, str]:
    """What the server said per index, parsed as leniently as possible."""
    texts: dict[int, str] = {}
    streamed = "event-stream" in transcript.content_type
    lines = transcript.body.splitlines() if streamed else [b"data: " + transcript.body]
    for line in lines:
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                held = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
                texts[choice["index"]] = texts.get(choice["index"], "") + (held.get("content") or "")
    return texts


def tokens_in(transcript: Transcript) -> int | None:
    """The completion tokens that the stream reports: the last count, or the sum if every choice has its own."""
    counts = [
        json.loads(line[6:])["usage"]["completion_tokens"]
        for line in transcript.body.splitlines()
        if line.startswith(b"data: {") and json.loads(line[6:]).get("usage") and not json.loads(line[6:])["choices"]
    ]
    return sum(counts) if counts else None


@settings(NATIVE, why="real servers with `n` were recorded")
@pytest.mark.parametrize("segment", [None, 1], ids=["whole", "byte by byte"])
@pytest.mark.parametrize(("server", "name"), taken())
async def test_R1_R3_D16_recorded_answers_come_out_whole(
    scene: Scene, server: str, name: str, segment: int | None
) -> None:
    transcript = load(server, name)
    streamed = "event-stream" in transcript.content_type
    if segment and not streamed:
        segment = 97  # a JSON body is read whole, so many cuts show as much as a cut after every byte
    scene.does(body=transcript.body, content_type=transcript.content_type, segment=segment)
    scene.upstream.models = [asked(transcript)["model"]]
    fields, said = asked(transcript), texts_in(transcript)
    if server in WITHOUT_N:
        fields["n"] = 1
    path = transcript.path or CHAT
    answer = await (await scene.gateway()).post(fields, path)
    assert answer.status_code == 200, answer.text
    chat = path == CHAT
    if not streamed:
        assert Whole(answer.content, choices=len(said), chat=chat).texts == said
        return
    options = fields.get("stream_options") or {}
    reading = read_stream(
        answer.content,
        choices=len(said),
        chat=chat,
        include_usage=bool(options.get("include_usage")),
        continuous=bool(options.get("continuous_usage_stats")),
    )
    assert reading.texts == said
    assert sorted(reading.finishes) == sorted(said)
    if options.get("include_usage"):
        assert reading.usage is not None
        assert reading.usage["completion_tokens"] == tokens_in(transcript)


REFUSED = [(server, name) for server in SERVERS for name in names(server) if 400 <= load(server, name).status < 500]


@settings(NATIVE, why="real servers with `n` were recorded")
@pytest.mark.parametrize(("server", "name"), REFUSED)
async def test_K1_K9_recorded_refusals_reach_the_client(scene: Scene, server: str, name: str) -> None:
    transcript = load(server, name)
    scene.does(status=transcript.status, body=transcript.body, content_type=transcript.content_type)
    error = await scene.refused(transcript.status, n=1)
    told = json.loads(transcript.body)["error"]
    assert error["message"] == (told if isinstance(told, str) else told["message"])


@settings(why="`n: auto` finds out")
@pytest.mark.parametrize(("server", "name"), [one for one in taken() if one[0] in WITHOUT_N and "n2" in one[1]])
async def test_Q6_C7_servers_that_ignore_n(upstream: FakeUpstream, start: Start, server: str, name: str) -> None:
    transcript = load(server, name)
    said, path, fields = texts_in(transcript)[0], transcript.path or CHAT, asked(transcript) | {"model": MODEL, "n": 3}
    upstream.behaviour.body, upstream.behaviour.content_type = transcript.body, transcript.content_type
    gateway = await start(n="auto")
    for calls in (3, 6):
        answer = await gateway.post(fields, path)
        assert len(upstream.calls) == calls
        if not fields.get("stream"):
            whole = Whole(answer.content, choices=3, chat=path == CHAT)
            assert whole.texts == dict.fromkeys(range(3), said)
            assert whole.usage is not None
            assert whole.usage["completion_tokens"] == 3 * json.loads(transcript.body)["usage"]["completion_tokens"]
            continue
        usage_asked = "stream_options" in fields
        told = read_stream(answer.content, choices=3, chat=path == CHAT, include_usage=usage_asked)
        assert told.texts == dict.fromkeys(range(3), said)
        if usage_asked:
            assert told.usage is not None and told.usage["completion_tokens"] == 3 * (tokens_in(transcript) or 0)

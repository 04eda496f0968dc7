"""What real servers answered, played through the conduct."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import OpenLeg
from nproxy.choices.events import Event, LegBody, LegChunk, LegEnded, LegFailed
from nproxy.openai.body import Body
from nproxy.openai.requests import Limits, Request, parse_chat, parse_completion
from nproxy.openai.sse import SSEDecoder
from tests.choices.conduct_player import FANOUT, NATIVE, UNTESTED, Play, chat, choices_in, contents, finishes
from tests.choices.upstream_says import DONE, status
from tests.transcripts.recorded import Transcript, load, names

NATIVE_SERVERS = ("vllm", "llamacpp")


def request_of(transcript: Transcript, **changed: Any) -> Request:
    raw = json.dumps(json.loads(transcript.request) | changed).encode()
    parse = parse_chat if transcript.path.endswith("chat/completions") else parse_completion
    return parse(Body.parse(raw), Limits())


def events_of(transcript: Transcript, leg: int = 0) -> list[Event]:
    if transcript.status != 200:
        return [LegFailed(leg, status(transcript.status, transcript.body))]
    if "event-stream" not in transcript.content_type:
        return [LegBody(leg, transcript.body), LegEnded(leg)]
    decoder = SSEDecoder()
    decoded = [*decoder.feed(transcript.body), *decoder.close()]
    return [*(LegChunk(leg, e.data, e.name) for e in decoded), LegEnded(leg)]


def recorded(*, stream: bool) -> list[tuple[str, str]]:
    """All good answers to requests that nproxy takes, by form."""
    found = []
    for server in NATIVE_SERVERS:
        for name in names(server):
            transcript = load(server, name)
            fields = json.loads(transcript.request)
            as_asked = fields.get("best_of", fields.get("n", 1)) == fields.get("n", 1)
            taken = type(fields.get("n", 1)) is int and as_asked
            if transcript.status == 200 and bool(fields.get("stream")) is stream and taken:
                found.append((server, name))
    return found


def texts_in(transcript: Transcript) -> dict[int, str]:
    """What the server said per index, read independently of the product."""
    texts: dict[int, str] = {}
    if "event-stream" not in transcript.content_type:
        for choice in json.loads(transcript.body)["choices"]:
            texts[choice["index"]] = choice["message"]["content"] if "message" in choice else choice["text"]
        return texts
    for line in transcript.body.splitlines():
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                said = choice["delta"].get("content") if "delta" in choice else choice["text"]
                texts[choice["index"]] = texts.get(choice["index"], "") + (said or "")
    return texts


@pytest.mark.parametrize(("server", "name"), recorded(stream=True))
def test_recorded_streams_come_out_whole(server: str, name: str) -> None:
    transcript = load(server, name)
    play = Play(request_of(transcript), NATIVE)
    for event in events_of(transcript):
        play.gets(event)
    assert play.finish == "ok"
    assert contents(play.frames) == texts_in(transcript)
    assert sorted(finishes(play.frames)) == list(range(play.request.choices))
    asked = play.request.include_usage
    tails = [frame for frame in play.frames if isinstance(frame, dict) and not frame["choices"]]
    assert len(tails) == asked


@pytest.mark.parametrize(("server", "name"), recorded(stream=False))
def test_recorded_answers_come_out_whole(server: str, name: str) -> None:
    transcript = load(server, name)
    play = Play(request_of(transcript), NATIVE)
    play.gets(*events_of(transcript))
    assert play.finish == "ok"
    came = json.loads(transcript.body)
    for choice, shown in zip(came["choices"], play.reply["choices"], strict=True):
        assert {key: shown[key] for key in choice} == choice
    assert play.reply["usage"].items() >= {k: v for k, v in came["usage"].items() if v is not None}.items()


@pytest.mark.parametrize(("server", "name"), recorded(stream=False))
def test_the_folded_stream_equals_the_whole_answer(server: str, name: str) -> None:
    """The same body once as a plain answer, and once as the answer to a stream that the client folds itself."""
    transcript = load(server, name)
    streamed = Play(request_of(transcript, stream=True), NATIVE)
    streamed.gets(*events_of(transcript))
    assert contents(streamed.frames) == texts_in(transcript)


def test_R3_llamacpps_usage_per_choice_is_summed() -> None:
    transcript = load("llamacpp", "n2_stream_usage")
    play = Play(request_of(transcript), NATIVE)
    play.gets(*events_of(transcript))
    tail = play.frames[-2]
    assert tail["usage"]["completion_tokens"] == 4 + 8 and tail["usage"]["prompt_tokens"] == 34
    assert all(frame["usage"] is None for frame in play.frames[:-2])


def test_R4_llamacpps_json_usage_counts_one_choice_and_a_folded_stream_all() -> None:
    transcript = load("llamacpp", "n2_stream_usage")
    play = Play(request_of(transcript, stream=False, stream_options=None), Capability(None, json_usage=False))
    play.gets(*events_of(transcript))
    assert play.reply["usage"]["completion_tokens"] == 4 + 8
    assert {c["index"]: c["message"]["content"] for c in play.reply["choices"]} == texts_in(transcript)


def test_R1_llamacpp_speaks_out_of_order() -> None:
    play = Play(request_of(load("llamacpp", "n2_stream")), NATIVE)
    play.gets(*events_of(load("llamacpp", "n2_stream")))
    assert [c["index"] for c in choices_in(play.frames)][:2] == [0, 1]
    assert [c["delta"].get("role") for c in choices_in(play.frames)].count("assistant") == 2


def test_A14_vllm_refuses_greedy_choices_and_gets_them_one_by_one() -> None:
    transcript = load("vllm", "n3_temp0")
    play = Play(request_of(transcript), UNTESTED)
    play.gets(*events_of(transcript))
    assert [opened.leg.width for opened in play.opened] == [3, 1, 1, 1]


def test_R7_llamacpp_refuses_more_than_its_slots() -> None:
    transcript = load("llamacpp", "bad_n_33")
    play = Play(chat(n=33), UNTESTED)
    play.gets(*events_of(transcript))
    assert [opened.leg.width for opened in play.opened] == [33, 32, 1]


@pytest.mark.parametrize("server", NATIVE_SERVERS)
@pytest.mark.parametrize("name", ["chat_bestof3_n2", "cmpl_n2_bestof3", "cmpl_bestof3_n1"])
def test_J12_servers_that_ignore_best_of_and_give_no_logprobs(server: str, name: str) -> None:
    """What they answered to `best_of` itself: fewer choices, and nothing to choose by. It is never passed on."""
    transcript = load(server, name)
    play = Play(request_of(transcript), NATIVE)
    play.gets(*events_of(transcript))
    assert (play.respond.status, play.reply["error"]["param"]) == (400, "best_of")


@pytest.mark.parametrize("server", NATIVE_SERVERS)
@pytest.mark.parametrize("name", ["n2_logprobs", "cmpl_n2_logprobs"])
def test_J9_logprobs_as_servers_write_them(server: str, name: str) -> None:
    """The same answer to best_of=2, n=1: the likelier of the two, by a sum made here."""
    transcript = load(server, name)
    play = Play(request_of(transcript, n=1, best_of=2), NATIVE)
    play.gets(*events_of(transcript))
    came = json.loads(transcript.body)["choices"]

    def mean(choice: Any) -> float:
        told = choice["logprobs"]
        each = told.get("token_logprobs") or [entry["logprob"] for entry in told["content"]]
        return float(sum(each) / len(each))

    (shown,) = play.reply["choices"]
    assert {**max(came, key=mean), "index": 0}.items() <= shown.items()


@pytest.mark.parametrize(("server", "name"), [("vllm", "bad_n_a"), ("llamacpp", "bad_n_a")])
def test_K1_recorded_refusals_reach_the_client(server: str, name: str) -> None:
    transcript = load(server, name)
    play = Play(chat(n=2), FANOUT)
    play.gets(*events_of(transcript))
    assert play.respond.status == 400
    assert play.reply["error"]["message"] == json.loads(transcript.body)["error"]["message"]


def test_C7_transformers_serve_ignores_n() -> None:
    body = load("transformers-serve", "n2").body
    play = Play(chat(n=3), UNTESTED)

    def answered(opened: OpenLeg) -> None:
        play.answers(opened.leg.number, body)

    for number in range(3):
        answered(play.opened[number])
    assert play.finish == "ok"
    assert play.reply["usage"] == {"prompt_tokens": 34, "completion_tokens": 24, "total_tokens": 58}


@pytest.mark.parametrize("server", NATIVE_SERVERS)
def test_D11_recorded_streams_of_one_choice_are_relayed(server: str) -> None:
    """A leg's own bytes at n=1: index 0 of a recorded stream."""
    transcript = load(server, "n2_stream")
    events = [event for event in events_of(transcript) if isinstance(event, LegChunk)]
    only = [e.data for e in events if b'"index":0' in e.data]
    play = Play(request_of(transcript, n=1), NATIVE)
    play.streams(0, *only, DONE)
    assert play.emitted == b"".join(b"data: " + data + b"\n\n" for data in [*only, DONE])


def streamed_twice(transcript: Transcript, capability: Capability) -> Play:
    """Its request for two choices, each of them answered with the recorded stream of one."""
    chunks = [event.data for event in events_of(transcript) if isinstance(event, LegChunk)]
    play = Play(request_of(transcript), capability)
    play.streams(0, *chunks)
    play.streams(1, *chunks)
    return play


def test_C7_E4_ollama_ignores_n_and_counts_nothing_before_the_end() -> None:
    """Each chunk of its legacy streams but the last carries a usage of zeros."""
    play = streamed_twice(load("ollama", "cmpl_n2_stream_usage"), UNTESTED)
    assert play.finish == "ok" and finishes(play.frames) == [0, 1]
    told = [frame["usage"] for frame in play.frames if isinstance(frame, dict) and frame.get("usage")]
    assert told == [{"prompt_tokens": 15, "completion_tokens": 16, "total_tokens": 31}]


def test_F1_ollama_tells_a_tool_call_in_one_chunk() -> None:
    play = streamed_twice(load("ollama", "n2_tools_stream"), FANOUT)
    calls = {
        choice["index"]: choice["delta"]["tool_calls"]
        for choice in choices_in(play.frames)
        if choice["delta"].get("tool_calls")
    }
    assert {index: call["function"]["name"] for index, (call,) in calls.items()} == {0: "get_weather", 1: "get_weather"}
    assert len({call["id"] for (call,) in calls.values()}) == 1, "as the server says it"
    assert finishes(play.frames) == [0, 1]

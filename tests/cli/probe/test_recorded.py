"""What the interview makes of the recorded answers of real servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from nproxy.cli.probe import legacy, streams, width
from nproxy.cli.probe.findings import Report
from nproxy.cli.probe.interview import Plan, conduct, interview
from nproxy.cli.probe.questions import Asking, Form, Get, Post, Question, Reply
from nproxy.cli.probe.reading import ParsedReply, read
from nproxy.openai.dialect import Dialect
from tests.cli.probe.pretend import reply
from tests.transcripts import recorded

PLAN = Plan(nonce="", model="smol", tokens=8, seed=7)
"""As the recordings were asked for."""

SAYS_WHAT = ("n", "seed", "temperature", "stream", "stream_options", "logprobs", "echo", "stop", "best_of")


def as_reply(server: str, name: str) -> Reply:
    transcript = recorded.load(server, name)
    return Reply(transcript.status, transcript.headers, transcript.body)


def reading(server: str, name: str) -> ParsedReply:
    found = read(as_reply(server, name))
    assert found is not None
    return found


def shape(body: Mapping[str, Any]) -> tuple[object, ...]:
    alike = {**body, "n": 2} if body.get("n") == 3 else body  # three were asked for where two would do
    return tuple(json.dumps(alike.get(name)) for name in SAYS_WHAT)


def answers(server: str) -> dict[tuple[object, ...], Reply]:
    """The chat answers that were recorded with eight tokens, by what was asked."""
    found: dict[tuple[object, ...], Reply] = {}
    for name in recorded.names(server):
        transcript = recorded.load(server, name)
        body = json.loads(transcript.request or b"{}")
        if transcript.path.endswith("/chat/completions") and body["max_tokens"] == 8 and "use_beam_search" not in body:
            found.setdefault(shape(body), as_reply(server, name))
    return found


def probe(server: str) -> Report:
    """Every question that was recorded is answered as it was then, with a seed each time, else once; others are not."""
    known = answers(server)

    def ask(question: Question) -> Reply:
        match question:
            case Get(path="/models"):
                return reply({"data": [{"id": "smol", "owned_by": server}]})
            case Post(path="/chat/completions"):
                take = known.get if "seed" in question.body else known.pop
                return take(shape(question.body), Reply(0, failure="not recorded"))
            case _:
                return Reply(0, failure="not recorded")

    return conduct("http://recorded/v1", interview(PLAN), ask)


def told(report: Report, section: str = "chat") -> dict[str, str]:
    return {name: found.verdict for name, found in report.sections[section].items() if found.verdict != "unknown"}


def test_vllm() -> None:
    assert told(probe("vllm")) == {
        "available": "yes",
        "sampling": "yes",
        "n": "yes",
        "n_stream": "yes",
        "n_greedy": "no",
        "seed_accepted": "yes",
        "seed": "yes",
        "usage": "yes",
        "usage_all_choices": "yes",
        "stream": "yes",
        "stream_options": "yes",
        "stream_usage": "yes",
        "stream_usage_once": "yes",
        "stream_usage_all_choices": "yes",
        "role_chunks": "yes",
        "one_id": "yes",
        "finish": "yes",
        "done": "yes",
    }


def test_llama_cpp() -> None:
    report = probe("llamacpp")
    assert told(report) == {
        **told(probe("vllm")),
        "n_greedy": "yes",
        "stream_usage_once": "no",  # R3
        "usage_all_choices": "no",  # R4
        "role_chunks": "no",
    }
    assert report["chat", "role_chunks"].how == "text of one choice comes before the role of another"
    assert report["chat", "usage_all_choices"].how == "4 tokens counted for 2 choices that had at least 9"


def asked(part: Asking[Any], answer: Reply) -> Any:
    try:
        next(part)
        while True:
            part.send(answer)
    except StopIteration as end:
        return end.value


CHAT, LEGACY = (Form(dialect, "smol", 8) for dialect in (Dialect.CHAT, Dialect.COMPLETIONS))


def test_transformers_serve_ignores_n() -> None:
    found = asked(width.pair(CHAT), as_reply("transformers-serve", "n2"))
    assert (found.finding.verdict, found.finding.value) == ("no", "ignored")


@pytest.mark.parametrize("server", ["vllm", "llamacpp"])
def test_per_choice_seeds(server: str) -> None:
    four = reading(server, "n2_seed")
    assert len(set(four.texts)) == 4


@pytest.mark.parametrize(
    ("server", "name", "how"),
    [
        ("llamacpp", "bad_n_33", "400: Field 'n': Value must be between 1 <= value <= 32, but got 33"),
        ("vllm", "n3_temp0", "400: n must be 1 when using greedy sampling, got 3."),
    ],
)
def test_what_refusals_say(server: str, name: str, how: str) -> None:
    refused = as_reply(server, name)
    assert (refused.ok, refused.refused, refused.reason()) == (False, True, how)


def test_llama_cpp_names_its_limit() -> None:
    def answer(question: Question) -> Reply:
        assert isinstance(question, Post)
        n = question.body.get("n", 1)
        assert isinstance(n, int)
        choices = [{"index": j, "message": {"content": "x"}, "finish_reason": "length"} for j in range(n)]
        return as_reply("llamacpp", "bad_n_65") if n > 32 else reply({"choices": choices})

    part = width.search(CHAT, 128)
    question, widths = next(part), []
    try:
        while True:
            widths.append(question.body["n"] if isinstance(question, Post) else None)
            question = part.send(answer(question))
    except StopIteration as end:
        assert (end.value.widest, end.value.limited) == (32, True)
    assert widths == [2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize(("server", "expected"), [("vllm", "yes"), ("llamacpp", "no")])
def test_echo(server: str, expected: str) -> None:
    answer = as_reply(server, "cmpl_n2_echo")
    assert legacy._echo(answer, read(answer), "The color of the sky is").verdict == expected


@pytest.mark.parametrize("server", ["vllm", "llamacpp"])
def test_logprobs(server: str) -> None:
    assert asked(legacy.logprobs(CHAT), as_reply(server, "n2_logprobs")).verdict == "yes"
    assert asked(legacy.logprobs(LEGACY), as_reply(server, "cmpl_n2_logprobs")).verdict == "yes"
    assert asked(legacy.logprobs(CHAT), as_reply(server, "n2")).verdict == "no"
    assert all(said.logprobs for said in reading(server, "n2_logprobs_stream").choices)


@pytest.mark.parametrize("server", ["vllm", "llamacpp"])
def test_prompt_lists(server: str) -> None:
    assert len(reading(server, "cmpl_n2_two_prompts").choices) == 4


def test_usage_of_a_legacy_answer() -> None:
    assert streams.counts_all([(2, reading("vllm", "cmpl_n2_echo"))]).verdict == "yes"
    assert streams.counts_all([(2, reading("llamacpp", "cmpl_n2_echo"))]).verdict == "no"


@pytest.mark.parametrize("server", recorded.SERVERS)
def test_every_recording_reads_as_choices_or_a_refusal(server: str) -> None:
    for name in recorded.names(server):
        answer = as_reply(server, name)
        assert (read(answer) is not None) != (answer.refused or answer.status >= 500), name


def test_R8_a_stream_that_begins_with_null() -> None:
    said = json.dumps({"id": "x", "choices": [{"index": 0, "text": "a", "finish_reason": "length"}]})
    found = read(Reply(200, {"content-type": "text/event-stream"}, f"data: null\n\ndata: {said}\n\n".encode()))
    assert found is not None
    assert found.texts == ("a",)


@pytest.mark.parametrize(
    "error", ['data: {"error": {"message": "no"}}', 'event: error\ndata: {"message": "no"}', 'error: {"message": "no"}']
)
def test_a_stream_with_an_error_is_no_answer(error: str) -> None:
    said = json.dumps({"id": "x", "choices": [{"index": 0, "text": "a", "finish_reason": None}]})
    assert read(Reply(200, {"content-type": "text/event-stream"}, f"data: {said}\n\n{error}\n\n".encode())) is None

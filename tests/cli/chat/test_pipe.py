"""`nproxy chat` in a pipe: one prompt in, n answers out, and what goes wrong in one line."""

from __future__ import annotations

import asyncio
import json

import pytest

from nproxy.cli.chat import client
from nproxy.cli.chat.failed import ChatFailed
from nproxy.cli.target import parse_target
from tests.cli.running import Done, in_here
from tests.fakes.behaviour import said
from tests.fakes.terminal import nproxy
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream

CANARY = "canary-5d71"


async def chat(upstream: FakeUpstream | str, *words: str, given: bytes = b"", **environ: str) -> Done:
    """`nproxy chat` in front of a server, with this on standard input."""
    url = upstream if isinstance(upstream, str) else upstream.url
    return await in_here("chat", "--url", url, *words, given=given, **environ)


async def test_in_a_process_of_its_own() -> None:
    async with FakeUpstream(Behaviour(n="native")) as upstream:
        argv = nproxy("chat", "--url", upstream.url, "-n", "2", "--seed", "1")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe)
        out, err = await process.communicate(b"hi")
    assert (process.returncode, err) == (0, b"")
    assert out.decode() == f"--- choice 0 ---\n{said(1)}\n\n--- choice 1 ---\n{said(2)}\n"


async def test_answers_come_one_after_the_other() -> None:
    async with FakeUpstream(Behaviour(n="native")) as upstream:
        done = await chat(upstream, "-n", "2", "--seed", "1", "hi", given=b"is not read where a prompt is given")
        assert upstream.calls[0].body["messages"] == [{"role": "user", "content": "hi"}]
    assert done == Done(0, f"--- choice 0 ---\n{said(1)}\n\n--- choice 1 ---\n{said(2)}\n", "")


async def test_one_answer_stands_alone() -> None:
    async with FakeUpstream() as upstream:
        done = await chat(upstream, "-n", "1", "--seed", "1", "--model", "other", given="wie heißt\ndas?\n".encode())
        (call,) = upstream.requests  # no list of models is asked for where one is named
    assert done == Done(0, f"{said(1)}\n", "")
    assert (call.body["model"], "n" in call.body) == ("other", False)
    assert call.body["messages"] == [{"role": "user", "content": "wie heißt\ndas?"}]


async def test_json_is_one_line() -> None:
    async with FakeUpstream(Behaviour(n="native")) as upstream:
        done = await chat(upstream, "-n", "2", "--seed", "1", "--json", "hi")
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
    told = json.loads(done.out)
    assert [choice["content"] for choice in told["choices"]] == [said(1), said(2)]
    assert [choice["tokens"] for choice in told["choices"]] == [4, 4]
    assert (told["url"], told["usage"]["completion_tokens"], told["failure"]) == (upstream.url, 8, None)


async def test_a_server_that_does_not_stream_is_read_too() -> None:
    async with FakeUpstream(Behaviour(n="native", json_for_stream=True)) as upstream:
        done = await chat(upstream, "-n", "2", "--seed", "1", "--json", "hi")
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    assert [choice["content"] for choice in told["choices"]] == [said(1), said(2)]
    assert told["usage"]["completion_tokens"] == 8


async def test_a_server_that_refuses_stream_options_is_asked_without() -> None:
    async with FakeUpstream(Behaviour(n="native", refuse=("stream_options",))) as upstream:
        done = await chat(upstream, "-n", "2", "--seed", "1", "hi")
        assert ["stream_options" in call.body for call in upstream.calls] == [True, False]
    assert (done.code, done.err) == (0, "")


async def test_a_key_goes_with_the_request_and_nowhere_else() -> None:
    refused = Behaviour(status=401, body=json.dumps({"error": {"message": f"{CANARY} is no key."}}).encode())
    async with FakeUpstream(refused) as upstream:
        done = await chat(upstream, "--api-key", "${KEY}", "hi", KEY=CANARY)
        assert {call.headers["authorization"] for call in upstream.requests} == {f"Bearer {CANARY}"}
        assert done == Done(1, "", f"nproxy: {upstream.url} answered 401: *** is no key.\n")
        done = await chat(upstream, "hi")
        assert done.err.endswith("is no key; give its key with --api-key\n")


@pytest.mark.parametrize(
    ("behaviour", "out", "why"),
    [
        (Behaviour(n="ignore"), said(1), "the server sent 1 of 2 choices; nproxy gives it n: nproxy serve --upstream"),
        (Behaviour(n="refuse"), "", "answered 400: n must be 1"),
        (Behaviour(n="native", end_after=5, end="cut"), "seed 1", "broke off: "),
        (Behaviour(n="native", end_after=5, end="close"), "seed 1", "the stream ended before choices 0, 1 did"),
        (Behaviour(n="native", end_after=5, end="error"), "seed 1", "failed: ran out of luck"),
        (
            Behaviour(n="native", end_after=5, end="malformed"),
            "seed 1",
            "does not answer as the OpenAI API specifies: it is not JSON",
        ),
        (
            Behaviour(status=200, body=b"<html>", content_type="text/html"),
            "",
            "does not answer as the OpenAI API specifies",
        ),
        (Behaviour(status=503, body=b"<html>", content_type="text/html"), "", "503: The upstream answered 503"),
    ],
)
async def test_what_goes_wrong_is_one_line_behind_what_came(behaviour: Behaviour, out: str, why: str) -> None:
    async with FakeUpstream(behaviour) as upstream:
        done = await chat(upstream, "-n", "2", "--seed", "1", "hi")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert out in done.out
    assert why in done.err


@pytest.mark.parametrize("words", [(), ("--model", "m")])
async def test_json_says_why_there_is_no_answer(words: tuple[str, ...]) -> None:
    refusing = "http://127.0.0.1:1/v1"
    async with FakeUpstream(Behaviour(status=500, body=b'{"error": {"message": "broken"}}')) as failing:
        for server, model, why in (
            (failing, words[-1] if words else MODEL, f"{failing.url} answered 500: broken"),
            (refusing, "".join(words[1:]), f"{refusing} cannot be reached: connection refused"),
        ):
            done = await chat(server, *words, "-n", "2", "--json", "hi")
            assert (done.code, done.err, done.out.count("\n")) == (1, f"nproxy: {why}\n", 1)
            told = json.loads(done.out)
            assert (told["model"], told["failure"], told["usage"]) == (model, why, None)
            assert [(choice["content"], choice["finish_reason"]) for choice in told["choices"]] == [("", None)] * 2


async def test_a_server_that_is_silent_for_too_long() -> None:
    async with FakeUpstream(Behaviour(hold=asyncio.Event())) as upstream:
        done = await chat(upstream, "--timeout", "0.2", "hi")
        assert done == Done(1, "", f"nproxy: {upstream.url} sent nothing for 0.2 s\n")


async def test_a_server_without_models() -> None:
    async with FakeUpstream(list_fails=True) as upstream:
        done = await chat(upstream, "hi")
        assert done == Done(1, "", f"nproxy: {upstream.url} answered 500: no list\n")


@pytest.mark.parametrize(
    ("words", "given", "why"),
    [
        ((), b" \n", "nproxy: the prompt is empty"),
        ((), b"\xff", "nproxy: the prompt is not valid UTF-8"),
        (("-n", "0", "hi"), b"", "0 is not in the range"),
        (("--api-key", "${NOT_THERE}", "hi"), b"", "nproxy: --api-key: environment variable NOT_THERE is not set"),
        (("--api-key", "file:", "hi"), b"", "nproxy: --api-key: needs a path behind file:"),
        (("--url", "http://u:p@a", "hi"), b"", "nproxy: URL: must not contain credentials; use --api-key"),
        (("--url", "localhost", "hi"), b"", "nproxy: URL: must begin with http"),
    ],
)
async def test_wrong_use_is_2(words: tuple[str, ...], given: bytes, why: str) -> None:
    done = await chat("http://127.0.0.1:1", *words, given=given)
    assert (done.code, done.out) == (2, "")
    assert why in done.err


def test_nothing_at_the_default_address_says_how_to_start_something(monkeypatch: pytest.MonkeyPatch) -> None:
    target = parse_target("http://127.0.0.1:1/v1", None)
    with client.opened(target, 5.0) as asking:
        with pytest.raises(ChatFailed, match=r"^http://127.0.0.1:1/v1 cannot be reached: connection refused$"):
            asking.models()
        monkeypatch.setattr(client, "DEFAULT_URL", target.url)  # where another program may listen while this runs
        with pytest.raises(ChatFailed, match=r"connection refused; start a server with: nproxy serve \(or"):
            asking.models()

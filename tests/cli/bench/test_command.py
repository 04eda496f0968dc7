"""`nproxy bench` as a user meets it: a process, exit codes, one clear line per error, a report even after Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nproxy.cli.bench.options import bench
from nproxy.cli.bench.report import Report
from tests.cli.examples import Example, lines
from tests.cli.running import Done, nproxy
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream
from tests.real.processes import ROOT

CANARY = "canary-83e0"
NATIVE = Behaviour(n="native")


def told(done: Done) -> Any:
    assert done.err == ""
    return json.loads(done.out)


async def test_the_json_keeps_its_shape() -> None:
    async with FakeUpstream(NATIVE) as server:
        done = await nproxy("bench", server.url, "-n", "3", "--requests", "6", "--concurrency", "2", "--json")
        assert done.code == 0
        assert len(server.calls) == 7  # one to warm up
        assert {call.body["n"] for call in server.calls} == {3}
        assert len({str(call.body["messages"]) for call in server.calls}) == 7
    value = told(done)
    assert list(value) == list(Report.model_fields)
    assert (value["bench"], value["url"], value["model"]) == (1, server.url, MODEL)
    assert (value["requests"], value["choices"]) == ({"ok": 6, "failed": 0, "unfinished": 0}, 18)
    assert value["tokens"] == {"prompt": 30, "cached": 0, "completion": 72, "by_usage": 6, "by_chunks": 0}
    assert list(value["latencies"]["inter_token"]) == ["count", "mean", "p50", "p90", "p99", "max", "exact"]
    assert value["conditions"]["concurrency"] == 2
    assert value["client"]["cpu_share"] > 0
    assert value["per_second"]["choices"] == pytest.approx(18 / value["wall_seconds"])


async def test_a_report_is_saved_though_nobody_reads_what_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    async with FakeUpstream(NATIVE) as server:
        command = (sys.executable, "-m", "nproxy", "bench", server.url, "--requests", "2", "--save", str(file))
        with Path("/dev/full").open("wb") as full:
            process = await asyncio.create_subprocess_exec(*command, stdout=full, stderr=full)
            async with asyncio.timeout(60):
                assert await process.wait() != 0
    assert json.loads(file.read_bytes())["requests"]["ok"] == 2


async def test_the_table_is_plain_in_a_pipe_and_compares(tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    words = ("--requests", "4", "--prompt", "hello", "--completions", "--seed", "7", "--temperature", "0.5")
    async with FakeUpstream(NATIVE) as server:
        first = await nproxy("bench", server.url, "-n", "2", *words, "--save", str(file))
        again = await nproxy("bench", server.url, "-n", "4", *words, "--compare", str(file))
        calls = [call.body for call in server.calls]
        assert {call.path for call in server.calls} == {"/v1/completions"}
    assert (first.code, first.err, again.code, again.err) == (0, "", 0, "")
    assert "\x1b" not in first.out + again.out
    assert "4 answered, 0 failed\n" in first.out
    assert "compared with before.json of " in again.out
    assert "differs: n: 2 before, 4 now\n" in again.out
    warm, *others = [call["seed"] for call in calls[:5]]
    assert (warm, sorted(others)) == (7, [9, 11, 13, 15])
    assert {call["prompt"] for call in calls} == {"hello"}
    assert {call["temperature"] for call in calls} == {0.5}
    assert json.loads(file.read_text())["choices"] == 8


async def test_a_rate_a_dataset_and_words_for_failures(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b", "n": 2, "top_k": 3}\n')
    async with FakeUpstream(Behaviour(n="ignore")) as server:
        words = ("--rate", "1000", "--dataset", str(file), "--warmup", "0", "--no-stream", "--ignore-eos")
        done = await nproxy("bench", server.url, *words)
        bodies = sorted((call.body for call in server.calls), key=lambda body: body["n"])
    assert (done.code, done.err) == (0, "")
    assert "1 answered, 1 failed\n" in done.out
    assert "       1  short: 1 of 2 choices came\n" in done.out
    assert [(body["n"], body.get("top_k"), body["stream"], body["ignore_eos"]) for body in bodies] == [
        (1, None, False, True),
        (2, 3, False, True),
    ]


async def test_seconds_alone_end_it_and_no_number_of_requests_does() -> None:
    async with FakeUpstream(NATIVE) as server:
        value = told(await nproxy("bench", server.url, "--seconds", "0.1", "--concurrency", "1", "--json"))
    assert (value["conditions"]["seconds"], value["conditions"]["requests"]) == (0.1, None)
    assert not value["interrupted"]


async def test_goodput() -> None:
    async with FakeUpstream(Behaviour(n="ignore")) as server:
        server.script(NATIVE, NATIVE, NATIVE)  # one to warm up, and two that are answered
        words = ("--requests", "4", "--concurrency", "1", "--goodput", "ttft:60000", "--goodput", "e2el:90000.5")
        value = told(await nproxy("bench", server.url, "-n", "2", *words, "--json"))
    good = value["goodput"]
    assert (good["bounds"], good["requests"], good["share"]) == ({"ttft": 60000.0, "e2el": 90000.5}, 2, 0.5)
    assert good["per_second"] == pytest.approx(2 / value["wall_seconds"])
    assert value["conditions"]["goodput"] == "ttft:60000 e2el:90000.5"


async def test_sigterm_ends_it_early_as_ctrl_c_does() -> None:
    held = Behaviour(hold=asyncio.Event())
    async with FakeUpstream(NATIVE) as server:
        server.script(NATIVE, NATIVE, NATIVE, held)
        argv = (sys.executable, "-m", "nproxy", "bench", server.url, "--concurrency", "1", "--json")
        process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        await server.until(lambda: len(server.calls) == 4, 60)
        process.send_signal(signal.SIGTERM)
        out, _ = await process.communicate()
        await server.until(lambda: not server.open_calls, 60)
    assert process.returncode == 128 + signal.SIGTERM
    value = json.loads(out)
    assert value["interrupted"]
    assert value["requests"] == {"ok": 2, "failed": 0, "unfinished": 1}


async def test_the_key_is_shown_nowhere(tmp_path: Path) -> None:
    echo = f'{{"error": {{"message": "{CANARY} is not for this"}}}}'.encode()
    async with FakeUpstream(Behaviour(status=403, body=echo)) as server:
        words = ("bench", server.url, "--api-key", "${KEY}", "--requests", "1")
        done = await nproxy(*words, "--warmup", "0", "--save", str(tmp_path / "a.json"), KEY=CANARY)
        line = (await nproxy(*words, KEY=CANARY)).line(1)
        assert {seen.headers["Authorization"] for seen in server.requests} == {f"Bearer {CANARY}"}
    assert done.code == 1  # nothing was answered
    assert "       1  403: *** is not for this" in done.out
    assert line == f"nproxy: {server.url}: no warm-up request succeeded: 403: *** is not for this"
    assert CANARY not in done.out + done.err + line + (tmp_path / "a.json").read_text()


async def test_nobody_there() -> None:
    line = (await nproxy("bench", "http://127.0.0.1:9")).line(1)
    assert line == "nproxy: http://127.0.0.1:9/v1: cannot be reached: connection refused"


def wrong(*words: str) -> str:
    """What is said on standard error of words that cannot be."""
    done = CliRunner().invoke(bench, words)
    assert (done.exit_code, done.stdout) == (2, "")
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("http://a", "--rate", "1", "--concurrency", "1"), "Error: --concurrency and --rate cannot be used together"),
        (("http://a", "--prompt", "a", "--dataset", "b"), "Error: --prompt and --dataset cannot be used together"),
        (
            ("http://a", "--prompt", "a", "--prompt-tokens", "5"),
            "Error: --prompt and --prompt-tokens cannot be used together",
        ),
        (("http://a", "--burstiness", "2"), "Error: --burstiness needs --rate"),
        (("http://a", "--prompt", "a", "--shared-prefix", "2"), "Error: --shared-prefix needs --prompt-tokens"),
        (
            ("http://a", "--prompt-tokens", "4", "--shared-prefix", "5"),
            "Error: --shared-prefix is longer than the prompt (--prompt-tokens)",
        ),
        *(
            (
                ("http://a", "--goodput", bad),
                f"Error: Invalid value for '--goodput': {bad} must be one of ttft, tpot, e2el, a colon and "
                "a number of milliseconds, as in ttft:500.",
            )
            for bad in ("ttft", "ttft:", "ttft:0", "ttft:nan", "ttft:inf", "itl:5", "500")
        ),
        (("http://a", "--goodput", "ttft:1", "--goodput", "ttft:2"), "Error: --goodput bounds ttft twice"),
        (
            ("http://a", "--goodput", "e2el:1", "--goodput", "tpot:2", "--no-stream"),
            "Error: --goodput tpot needs streams; it cannot be measured with --no-stream",
        ),
        (("http://user:secret@a",), "nproxy: URL: must not contain credentials; use --api-key"),
        (("http://a", "--compare", "/no/such/file"), "nproxy: --compare: /no/such/file: No such file or directory"),
        (("http://a", "--dataset", "/no/such/file"), "nproxy: --dataset: /no/such/file: No such file or directory"),
        (("http://a", "--save", "/no/such/file"), "nproxy: --save: /no/such/file: No such file or directory"),
    ],
)
def test_wrong_use(words: tuple[str, ...], line: str) -> None:
    assert wrong(*words) == line


async def test_prompts_that_share_all_their_words_are_allowed() -> None:
    async with FakeUpstream(NATIVE) as server:
        words = ("--requests", "2", "--prompt-tokens", "4", "--shared-prefix", "4", "--warmup", "0")
        assert (await nproxy("bench", server.url, *words)).code == 0
        assert len({str(call.body["messages"]) for call in server.calls}) == 1


@pytest.mark.parametrize(
    "words", [(), ("http://a", "-n", "0"), ("http://a", "--rate", "0"), ("http://a", "--seconds", "0")]
)
def test_wrong_words(words: tuple[str, ...]) -> None:
    wrong(*words)


SHORTER = {"60": "0.1", "120": "0.1", "5": "500"}
"""Seconds and requests per second of an example, and those that its test takes."""


async def test_the_examples_of_the_help_run(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    calls = [words for line in lines(bench) for words in Example("", line).calls()]
    assert len(calls) >= 5
    with contextlib.chdir(tmp_path):
        async with FakeUpstream(NATIVE) as server:
            for words in calls:
                here = [word.replace("http://127.0.0.1:8000", server.url) for word in words]
                done = await nproxy(*(SHORTER.get(word, word) for word in here), PYTHONPATH=str(ROOT))
                assert (done.code, done.err) == (0, ""), words

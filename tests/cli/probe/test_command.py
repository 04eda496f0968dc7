"""`nproxy probe` as a user meets it: real servers on loopback, exit codes, one clear line per error.

It runs in this process where a process of its own would show nothing more.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nproxy.cli.probe import client
from nproxy.cli.probe.findings import FACTS
from nproxy.cli.probe.questions import LONG, VARIED
from tests.cli.running import Done, in_here, nproxy
from tests.cli.test_serving import serve
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream, Seen, raw_server, words

CANARY = "canary-2f60"


class Probed(Done):
    """A probe that printed JSON."""

    def verdict(self, fact: str, section: str = "chat") -> str:
        found: str = json.loads(self.out)["findings"][section][fact]["verdict"]
        return found

    def value(self, fact: str, section: str = "chat") -> Any:
        return json.loads(self.out)["findings"][section][fact]["value"]


async def probe(url: str, *words: str) -> Probed:
    done = await in_here("probe", url, "--json", *words)
    assert (done.code, done.err) == (0, "")
    return Probed(done.code, done.out, done.err)


def fresh(behaviour: Behaviour) -> Behaviour:
    """The behaviour with another text each time, whatever the seed."""
    serial = itertools.count()
    behaviour.pieces = lambda seed: words(next(serial))
    return behaviour


async def test_the_default_ignores_n_and_has_a_fixed_seed() -> None:
    async with FakeUpstream() as upstream:
        done = await probe(upstream.url)
        assert {call.body["model"] for call in upstream.calls} == {MODEL}
    assert (done.verdict("n"), done.value("n")) == ("no", "ignored")
    assert (done.verdict("n", "completions"), done.verdict("seed"), done.verdict("fresh_seed")) == ("no", "yes", "no")
    assert (done.verdict("stream_usage"), done.verdict("done"), done.verdict("logprobs")) == ("yes", "yes", "yes")


async def test_native() -> None:
    async with FakeUpstream(Behaviour(n="native")) as upstream:
        done = await probe(upstream.url)
    assert (done.verdict("n"), done.value("n")) == ("yes", 128)
    assert done.verdict("seed_per_choice") == "yes"
    assert done.verdict("prompt_lists", "completions") == "yes"


async def test_native_up_to_three() -> None:
    async with FakeUpstream(Behaviour(n="native", width=3)) as upstream:
        done = await probe(upstream.url)
    assert (done.verdict("n"), done.value("n")) == ("yes", 3)


async def test_n_refused() -> None:
    async with FakeUpstream(Behaviour(n="refuse")) as upstream:
        done = await probe(upstream.url)
    assert (done.verdict("n"), done.value("n")) == ("no", "refused")


async def test_fields_refused() -> None:
    async with FakeUpstream(Behaviour(refuse=("seed", "stream_options", "logprobs", "echo"))) as upstream:
        done = await probe(upstream.url)
    facts = ("seed_accepted", "seed", "stream_options", "logprobs")
    assert [done.verdict(fact) for fact in facts] == ["no"] * 4
    assert done.verdict("echo", "completions") == "no"
    assert done.verdict("stream") == "yes"


async def test_seed_ignored() -> None:
    async with FakeUpstream(fresh(Behaviour())) as upstream:
        done = await probe(upstream.url)
    assert [done.verdict(fact) for fact in ("sampling", "seed", "fresh_seed")] == ["yes", "no", "yes"]


async def test_streams_with_gaps() -> None:
    async with FakeUpstream(Behaviour(usage=False, role=False, done=False, finish=None)) as upstream:
        done = await probe(upstream.url)
    facts = ("usage", "stream_usage", "role_chunks", "done", "finish")
    assert [done.verdict(fact) for fact in facts] == ["no"] * 5


async def test_a_stream_that_the_next_request_cuts() -> None:
    cut = Behaviour(hold_after=2, end_after=2, end="close")

    def choose(call: Seen) -> Behaviour | None:
        if call.body.get("stream") and LONG in str(call.body):
            return cut
        cut.go_on.set()
        return None

    async with FakeUpstream() as upstream:
        upstream.choose = choose
        done = await probe(upstream.url)
    assert done.verdict("beside", "server") == "no"


async def test_json_in_answer_to_a_stream() -> None:
    async with FakeUpstream(Behaviour(json_for_stream=True)) as upstream:
        done = await probe(upstream.url)
    assert done.verdict("stream") == "no"


async def test_a_connection_that_breaks_once_costs_nothing() -> None:
    async with FakeUpstream(Behaviour(n="native")) as upstream:
        upstream.script(Behaviour(before_head="reset"))
        done = await probe(upstream.url)
    assert done.verdict("available") == "yes"


async def test_a_429_is_waited_for() -> None:
    async with FakeUpstream(Behaviour(n="native")) as upstream:
        upstream.script(Behaviour(status=429, headers={"retry-after": "0"}))
        done = await probe(upstream.url)
    assert done.verdict("available") == "yes"


async def test_a_429_that_asks_for_a_long_wait_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(client, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    async with FakeUpstream(Behaviour(status=429, headers={"retry-after": "3600"})) as upstream:
        assert "429" in (await in_here("probe", upstream.url)).line(1)
    assert not any(slept)


async def test_room_for_six_calls_is_found() -> None:
    short = {"messages": [{"role": "user", "content": VARIED}], "max_tokens": 1, "temperature": 1.0, "model": MODEL}
    taken: list[Seen] = []
    refused: list[Seen] = []
    all_there = asyncio.Event()

    def choose(seen: Seen) -> Behaviour:
        """Hold the short calls that are made at once until the last of them is refused."""
        if seen.body == short and sum(call.raw == seen.raw for call in upstream.calls) > 1:  # one comes beside a stream
            if sum(call.closed is None for call in taken) < 6:
                taken.append(seen)
                return Behaviour(hold=all_there)
            refused.append(seen)
            if len(refused) == 32 - 6:
                all_there.set()
            return Behaviour(status=429)
        return Behaviour()

    async with FakeUpstream() as upstream:
        upstream.choose = choose
        done = await probe(upstream.url)
        for before in (refused, upstream.requests):
            before.clear()
        all_there.clear()
        told = await in_here("probe", upstream.url, "--yaml")
    assert (done.verdict("at_once", "server"), done.value("at_once", "server")) == ("no", 6)
    assert "parallel: 6  # 26 of 32 concurrent calls were refused: 429: " in told.out


async def test_in_front_of_nproxy_everything_is_mended() -> None:
    async with (
        FakeUpstream(Behaviour(usage=True, done=False, role=False)) as upstream,
        serve("--upstream", upstream.url) as it,
    ):
        done = await probe(f"{it.url}/v1")
    mended = ("n", "n_greedy", "seed_per_choice", "usage_all_choices", "role_chunks", "one_id", "done")
    assert {fact: done.verdict(fact) for fact in mended} == dict.fromkeys(mended, "yes")
    assert done.value("n") == 128
    assert json.loads(done.out)["server"].startswith("nproxy (")


async def test_the_json_keeps_its_shape() -> None:
    async with FakeUpstream(models=["b", "a"]) as upstream:
        done = await probe(upstream.url, "--model", "a")
        url = upstream.url
    value = json.loads(done.out)
    assert {key: value[key] for key in value if key not in ("findings", "questions", "server")} == {
        "probe": 1,
        "url": url,
        "model": "a",
        "models": ["b", "a"],
    }
    assert {section: list(found) for section, found in value["findings"].items()} == {
        section: list(facts) for section, facts in FACTS.items()
    }
    for found in value["findings"].values():
        for finding in found.values():
            assert list(finding) == ["verdict", "value", "how"]
            assert finding["verdict"] in ("yes", "no", "unknown")


async def test_the_table_is_plain_in_a_pipe() -> None:
    async with FakeUpstream() as upstream:
        done = await nproxy("probe", upstream.url)
    assert (done.code, done.err) == (0, "")
    assert done.out.isascii()
    assert "\x1b" not in done.out
    assert "  native n                           no       n=2 is ignored: one choice came\n" in done.out


async def test_the_yaml_is_an_entry_that_check_takes_and_serve_runs(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    async with FakeUpstream() as upstream:
        done = await nproxy("probe", upstream.url, "--yaml")
        assert (done.code, done.err) == (0, "")
        file.write_text(done.out)
        checked = await nproxy("check", str(file))
        assert (checked.code, checked.err) == (0, "")
        (told,) = [line for line in checked.out.splitlines() if line.startswith("upstream ")]
        assert {upstream.url, "models auto", "n fanout", "key none"} <= {*told.partition(": ")[2].split("; ")}
        async with serve("--config", str(file)) as running:
            again = await probe(f"{running.url}/v1")
    assert again.value("n") == 128


async def test_a_unix_socket(tmp_path: Path) -> None:
    async with FakeUpstream(Behaviour(n="native"), unix=str(tmp_path / "it.sock")) as upstream:
        done = await probe(upstream.url)
    assert done.value("n") == 128


async def test_the_key_is_sent_and_shown_nowhere(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(CANARY)
    echoing = json.dumps({"error": {"message": f"n is not for {CANARY}"}}).encode()

    def choose(seen: Seen) -> Behaviour | None:
        return Behaviour(status=400, body=echoing) if seen.body.get("n") else None

    async with FakeUpstream() as upstream:
        upstream.choose = choose
        for form in ((), ("--json",), ("--yaml",)):
            done = await in_here("probe", upstream.url, "--api-key", "${KEY}", *form, KEY=CANARY)
            assert done.code == 0
            assert "n is not for ***" in done.out
            assert CANARY not in done.out + done.err
        assert {seen.headers["Authorization"] for seen in upstream.requests} == {f"Bearer {CANARY}"}


async def test_nobody_there() -> None:
    line = (await nproxy("probe", "http://127.0.0.1:9/v1")).line(1)
    assert line == "nproxy: http://127.0.0.1:9/v1: cannot be reached: connection refused"
    assert "cannot be reached" in (await in_here("probe", "http://no-such-host.invalid")).line(1)


async def test_nothing_useful_there() -> None:
    async with FakeUpstream(Behaviour(status=404, body=b"<html>no</html>", content_type="text/html")) as upstream:
        line = (await in_here("probe", upstream.url)).line(1)
        assert line.endswith(f"model {MODEL} answers at no endpoint: 404: The upstream answered 404 Not Found.")
    async with FakeUpstream(list_fails=True) as upstream:
        assert (await in_here("probe", upstream.url)).line(1).endswith("name one with --model")
    async with FakeUpstream(Behaviour(status=401, body=b'{"error": {"message": "no key"}}')) as upstream:
        assert (await in_here("probe", upstream.url)).line(1).endswith("it needs a key (--api-key): 401: no key")


async def test_a_server_that_says_nothing_is_given_up() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with raw_server(silent) as url:
        assert (await in_here("probe", url, "--timeout", "0.2")).line(1).endswith("no answer within 0.2 s")


async def test_a_server_that_drips_is_given_up() -> None:
    async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with raw_server(drips) as url:
        assert (await in_here("probe", url, "--timeout", "0.4")).line(1).endswith("no answer within 0.4 s")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("127.0.0.1:8000",), "nproxy: URL: must begin with http://, https:// or unix:/"),
        (("http://user:secret@a",), "nproxy: URL: must not contain credentials; use --api-key"),
        (
            ("http://a", "--api-key", "${NOT_SET_ANYWHERE}"),
            "nproxy: --api-key: environment variable NOT_SET_ANYWHERE is not set",
        ),
    ],
)
async def test_wrong_use(words: tuple[str, ...], line: str) -> None:
    assert (await in_here("probe", *words)).line(2) == line


@pytest.mark.parametrize(
    "words", [(), ("http://a", "--timeout", "0"), ("http://a", "--yml"), ("http://a", "--yaml", "--json")]
)
async def test_wrong_words(words: tuple[str, ...]) -> None:
    assert (await in_here("probe", *words)).code == 2

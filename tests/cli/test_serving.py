"""`nproxy serve` from start to end, as its own process: what it says, where it listens, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import resource
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from nproxy.cli import engine_needs, serving
from nproxy.config import Config, Origin, Source
from nproxy.gateway.open_port import warn_of_an_open_port
from tests.clients import plain_client
from tests.fakes.upstream import MODEL, FakeUpstream
from tests.ports import free_port


@dataclass(frozen=True, slots=True)
class Serving:
    """A running `nproxy serve`, after its greeting."""

    process: asyncio.subprocess.Process
    url: str
    call: list[str]

    async def line(self) -> dict[str, Any]:
        """The next line of the log."""
        assert self.process.stderr is not None
        line: dict[str, Any] = json.loads(await self.process.stderr.readline())
        return line

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return await self.process.wait()


GREETING = re.compile(r"^nproxy listens on (\S+)\ntry: (.+)\nor open \S+ in a browser\n", re.MULTILINE)


@contextlib.asynccontextmanager
async def serve(*words: str, **environ: str) -> AsyncIterator[Serving]:
    """`nproxy serve` with these words on a free port; ended at the end of the block if it still runs."""
    process = await start(*words, **environ)
    assert process.stderr is not None
    try:
        said = ""
        while not (found := GREETING.search(said)):
            line = await process.stderr.readline()
            assert line, f"it ended: {said}"
            said += line.decode()
        yield Serving(process, found[1], shlex.split(found[2]))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def start(*words: str, **environ: str) -> asyncio.subprocess.Process:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NPROXY_LI")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nproxy", "serve", "--port", "0", *words),
        stderr=asyncio.subprocess.PIPE,
        env={**kept, **environ},
    )


async def test_an_upstream_alone_runs_no_engine_and_no_torch() -> None:
    async with FakeUpstream() as upstream, serve("--upstream", upstream.url) as running:
        family = psutil.Process(running.process.pid)
        assert family.children(recursive=True) == []
        async with plain_client(running.url) as client:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "n": 3}
            answer = await client.post("/v1/chat/completions", json=body)
        assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1, 2]
        assert not [part.path for part in family.memory_maps() if "libtorch" in part.path]
        assert await running.end() == 0


async def test_an_upstream_that_does_not_answer_is_told_and_may_come_later() -> None:
    async with FakeUpstream() as upstream:
        await upstream.stop()
        async with serve("--upstream", upstream.url) as running:
            line = await running.line()
            assert {"time", "logger"} <= line.keys()
            assert (line["level"], line["message"]) == ("warning", "upstream does not answer")
            assert (line["upstream"], line["replicas"]) == ("upstream", [upstream.url])
            async with upstream, plain_client(running.url) as client:
                assert (await client.get("/ready")).status_code == 200
                assert await running.end() == 0


async def test_an_upstream_that_answers_is_not_warned_of() -> None:
    async with FakeUpstream() as upstream, serve("--upstream", upstream.url) as running:
        await upstream.until(lambda: any(seen.closed for seen in upstream.requests))
        assert await running.end() == 0
        assert [(await running.line())["message"]] == ["draining"]


async def test_ctrl_c_ends_it_as_well_as_sigterm() -> None:
    async with FakeUpstream() as upstream, serve("--upstream", upstream.url) as running:
        assert await running.end(signal.SIGINT) == 0


async def test_it_may_open_as_many_files_as_the_system_grants() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with FakeUpstream() as upstream:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        try:
            async with serve("--upstream", upstream.url) as running:
                assert psutil.Process(running.process.pid).rlimit(psutil.RLIMIT_NOFILE) == (hard, hard)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_the_call_to_try_works(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream:
        file = tmp_path / "nproxy.yaml"
        file.write_text(f"upstreams: [{{name: a, replicas: ['{upstream.url}'], models: [{MODEL}]}}]\n")
        async with serve("--config", str(file)) as running:
            call = await asyncio.create_subprocess_exec(*running.call, stdout=asyncio.subprocess.PIPE)
            out, _ = await call.communicate()
            assert len(json.loads(out)["choices"]) == 4


def test_a_port_is_taken_before_anything_else_is_done() -> None:
    with serving._listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(serving.ServeFailed, match=f"127.0.0.1:{port} is in use"):
            serving._listen("127.0.0.1", port)


def test_an_ipv6_address_is_told_in_brackets() -> None:
    taken = OSError(errno.EADDRINUSE, "Address already in use")
    assert serving._why_not(taken, "::1", 80, "--port") == "[::1]:80 is in use; choose another with --port"
    other = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    said = "cannot listen on [fe80::1]:80: Cannot assign requested address"
    assert serving._why_not(other, "fe80::1", 80, "--port") == said


def test_of_two_that_are_bound_at_once_one_is_told_that_the_port_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind(("127.0.0.1", 0))
        port = rival.getsockname()[1]

        class Late(socket.socket):
            def bind(self, address: Any) -> None:
                super().bind(address)
                rival.listen()

        monkeypatch.setattr(socket, "socket", Late)
        with pytest.raises(serving.ServeFailed, match=f"127.0.0.1:{port} is in use"):
            serving._listen("127.0.0.1", port)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
async def test_a_greeting_that_cannot_be_written_does_not_end_it() -> None:
    port = free_port()
    async with FakeUpstream() as upstream:
        with Path("/dev/full").open("w") as full:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "nproxy", "serve", "--port", str(port), "--upstream", upstream.url),
                stderr=full,
            )
        try:
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=8)) as client:
                for _ in range(2):  # the second is after the greeting
                    assert (await client.get(f"http://127.0.0.1:{port}/health")).json() == {"status": "ok"}
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def test_a_models_path_starts_beside_the_settings_unless_an_option_names_it(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text("engine: {model: m.gguf}\n")
    assert engine_needs.model_folder(Source(file).read()) == tmp_path
    option = Origin("--model", names_key=True)
    typed = Source(file, adjust=lambda tree: tree.put(("engine", "model"), "m.gguf", option))
    assert engine_needs.model_folder(typed.read()) == Path()


async def test_an_adapter_that_is_not_there_is_told_before_the_model_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text("engine: {model: nothing/here, adapters: {law: law}}\n")
    process = await start("--config", str(file))
    _, said = await process.communicate()
    assert process.returncode == 2
    assert said.decode() == f"{file}:1: engine.adapters.law: {tmp_path / 'law'} has no adapter_config.json\n"


async def test_a_cache_whose_home_folder_is_not_known_is_told_like_other_settings(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text("engine: {model: smollm2-135m-instruct}\n")
    process = await start("--config", str(file), NPROXY_CACHE="~nobody-here")
    _, said = await process.communicate()
    assert process.returncode == 2
    why = "NPROXY_CACHE=~nobody-here begins with a home folder that is not known"
    assert said.decode() == f"{file}:1: engine.model: {why}\n"


async def test_an_engine_that_refuses_its_settings_ends_it_with_2_and_no_traceback(tmp_path: Path) -> None:
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"GGUF" + b"\xff" * 64)
    process = await start("--model", str(model))
    _, said = await process.communicate()
    lines = said.decode().splitlines()
    assert process.returncode == 2
    assert "Traceback" not in said.decode()
    assert lines[-1] == "nproxy: the engine cannot run with these settings; it says why above"
    assert [line for line in lines if line.startswith("engine: ")]


@pytest.mark.model
async def test_alone_it_serves_the_default_model(default_model: Path) -> None:
    async with serve() as running:
        assert running.call[0] == "curl"
        assert json.loads(running.call[-1])["model"] == "smollm2-135m-instruct"
        async with plain_client(running.url, timeout=60) as client:
            listed = (await client.get("/v1/models")).json()["data"]
            assert [model["id"] for model in listed] == ["smollm2-135m-instruct"]
            body = {**json.loads(running.call[-1]), "max_tokens": 8}
            answer = await client.post("/v1/chat/completions", json=body)
        assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1, 2, 3]
        assert answer.headers["x-nproxy-mode"] == "relay"
        children = psutil.Process(running.process.pid).children(recursive=True)
        assert await running.end() == 0
        assert psutil.wait_procs(children, timeout=5)[1] == []


@pytest.mark.parametrize(
    ("listening", "called"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://0.0.0.0:8000", "http://127.0.0.1:8000"),
        ("http://[::]:8000", "http://[::1]:8000"),
    ],
)
def test_the_call_to_try_goes_to_an_address_that_can_be_called(listening: str, called: str) -> None:
    said = serving._greeting(listening, "m", keys=False, playground=True)
    assert said.startswith(f"nproxy listens on {listening}\ntry: curl -s {called}/v1/chat/completions ")
    assert said.endswith(f"\nor open {called}/ in a browser")
    assert "browser" not in serving._greeting(listening, "m", keys=False, playground=False)


@pytest.mark.parametrize("model", ["m", None])
def test_the_call_to_try_shows_a_key_where_one_is_asked_for(model: str | None) -> None:
    shown = "-H 'authorization: Bearer KEY'"
    assert shown in serving._greeting("http://127.0.0.1:8000", model, keys=True, playground=True)
    assert shown not in serving._greeting("http://127.0.0.1:8000", model, keys=False, playground=True)


@pytest.mark.parametrize(
    ("host", "auth", "warned"),
    [("0.0.0.0", None, True), ("gpu1", None, True), ("127.0.0.1", None, False), ("0.0.0.0", {"api_key": "k"}, False)],
)
def test_an_open_port_is_warned_of(
    host: str, auth: dict[str, str] | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_an_open_port(Config.model_validate({"listen": {"host": host}, "engine": {}, "auth": auth}))
    assert [record.getMessage() for record in caplog.records] == warned * [
        "no key is required: anybody who can reach the port can use the servers; `auth` sets keys"
    ]


@pytest.mark.parametrize(("workers", "warned"), [(8, False), (9, True)])
def test_many_more_workers_than_processors_are_warned_of(
    workers: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    serving._warn_of_many_workers(Config.model_validate({"listen": {"workers": workers}, "engine": {}}), 2)
    assert [record.getMessage() for record in caplog.records] == warned * [
        "listen.workers is 9: more than one for each of the 2 processors is no use"
    ]


def with_an_admin_port(tmp_path: Path, port: int) -> str:
    """A settings file whose only upstream waits for servers that announce themselves."""
    file = tmp_path / "nproxy.yaml"
    upstreams = "[{name: fleet, replicas: [], n: fanout}]"
    file.write_text(f"admin: {{port: {port}, token: '${{ADMIN}}'}}\nupstreams: {upstreams}\n")
    return str(file)


async def test_servers_announce_themselves_to_every_worker_of_a_gateway(tmp_path: Path) -> None:
    port = free_port()
    words = ("--config", with_an_admin_port(tmp_path, port), "--workers", "2")
    replicas = "/admin/upstreams/fleet/replicas"
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}

    async def all_say(running: Serving, status: int) -> None:
        """Wait until as many new connections as reach all workers are answered so, one after the other."""
        in_a_row = 0
        async with asyncio.timeout(60):
            while in_a_row < 12:
                async with plain_client(running.url) as client:
                    answer = await client.post("/v1/chat/completions", json=body)
                in_a_row = in_a_row + 1 if answer.status_code == status else 0

    async with FakeUpstream() as upstream, serve(*words, ADMIN="x-41") as running:
        token = {"authorization": "Bearer x-41"}
        async with plain_client(f"http://127.0.0.1:{port}", headers=token) as admin:
            await all_say(running, 503)
            assert (await admin.post(replicas, json={"url": upstream.url})).status_code == 201
            await all_say(running, 200)
            (replica,) = (await admin.get(replicas)).json()["replicas"]
            assert (replica["source"], replica["legs"]) == ("registered", 0) and replica["lease_seconds"] > 0
            assert (await admin.post(f"{replicas}/drain", json={"url": upstream.url})).status_code == 200
            await all_say(running, 503)
            assert (await admin.post(f"{replicas}/undrain", json={"url": upstream.url})).status_code == 200
            await all_say(running, 200)
        assert await running.end() == 0


async def test_an_admin_port_that_is_taken_is_told_before_anything_is_served(tmp_path: Path) -> None:
    with serving._listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        process = await start("--config", with_an_admin_port(tmp_path, port), ADMIN="x-41")
        _, said = await process.communicate()
    assert process.returncode == 1
    assert f"127.0.0.1:{port} is in use; choose another with admin.port" in said.decode()

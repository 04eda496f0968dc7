"""Several workers as real processes: they share a port, counts and lessons; they are replaced, and end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from nproxy.config import digest_of
from nproxy.workers.worker import LEGS_SECONDS
from tests.clients import plain_client
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream, Seen
from tests.ports import free_port
from tests.real.processes import ROOT, ended
from tests.waiting import until

PATIENCE = 60.0
"""Seconds that anything may take before a test fails for it; nothing here is timed."""
SECRET = "sk-canary-of-workers"
ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


@dataclass(frozen=True, slots=True)
class Running:
    """A started `nproxy serve --workers N`."""

    process: asyncio.subprocess.Process
    url: str
    log: Path

    async def status(self) -> dict[str, Any]:
        async with client(self.url) as asking:
            told: dict[str, Any] = (await asking.get("/status")).json()
        return told

    async def workers(self) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = (await self.status())["workers"]
        return told

    async def pids(self) -> set[int]:
        """The processes that serve."""
        return {worker["pid"] for worker in await self.workers() if worker["state"] == "serving"}

    async def metric(self, name: str, **labels: str) -> float:
        async with client(self.url) as asking:
            return await metric_of(asking, name, **labels)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()


def client(url: str) -> httpx.AsyncClient:
    return plain_client(url, timeout=PATIENCE)


async def metric_of(asking: httpx.AsyncClient, name: str, **labels: str) -> float:
    """The sum of all samples of this name that carry these labels."""
    text = (await asking.get("/metrics")).raise_for_status().text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@contextlib.asynccontextmanager
async def serve(folder: Path, *words: str, workers: int = 2) -> AsyncIterator[Running]:
    """`nproxy serve` on a free port, once all workers accept connections; afterwards no process of it may be left."""
    port = free_port()
    log = folder / "nproxy.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nproxy", "serve", "--port", str(port), "--workers", str(workers), *words),
            stderr=out,
            cwd=ROOT,
        )
    family: list[psutil.Process] = []
    try:
        await until(lambda: "nproxy listens on" in log.read_text() or process.returncode is not None, PATIENCE)
        assert process.returncode is None, log.read_text()
        family = psutil.Process(process.pid).children(recursive=True)
        yield Running(process, f"http://127.0.0.1:{port}", log)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += psutil.Process(process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        left = [one for one in family if not ended(one)]
        with contextlib.suppress(TimeoutError):
            await until(lambda: all(map(ended, left)), PATIENCE)
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


async def eventually(condition: Callable[[], Any]) -> None:
    """Ask again and again: what is asked may fail while processes come and go."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(httpx.HTTPError, json.JSONDecodeError, KeyError):
                if await condition():
                    return
            await asyncio.sleep(0.05)


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(Behaviour()) as server:
        yield server


async def ask(url: str, **fields: Any) -> httpx.Response:
    async with client(url) as asking:
        return await asking.post("/v1/chat/completions", json={**ASKED, **fields})


async def test_workers_share_the_port_what_they_count_and_what_they_learn(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    async with serve(tmp_path, "--upstream", upstream.url, workers=3) as running:
        assert len(psutil.Process(running.process.pid).children()) == 3
        assert len(await running.pids()) == 3
        answers = await asyncio.gather(*(ask(running.url, n=2) for _ in range(30)))
        assert {answer.status_code for answer in answers} == {200}
        assert await running.metric("nproxy_choices_total") == 60, "whichever worker is asked"
        assert await running.metric("nproxy_requests_total", endpoint="chat/completions") == 30
        assert await running.metric("nproxy_build_info") == 1
        assert await running.metric("nproxy_workers", state="serving") == 3
        assert await running.metric("nproxy_inflight_choices") == 0
        replica = {"replica": upstream.url, "outcome": "ok"}
        assert await running.metric("nproxy_replica_calls_total", **replica) == await running.metric(
            "nproxy_legs_total"
        )
        await _exemplars_of_all_are_told(running.url)

        async def all_know() -> bool:
            upstream.requests.clear()
            for _ in range(12):
                await ask(running.url, n=2)
            return all("n" not in seen.body for seen in upstream.calls)

        await eventually(all_know)  # that this server ignores n
        running.process.terminate()
        assert await running.process.wait() == 0


async def _exemplars_of_all_are_told(url: str) -> None:
    """Whichever worker is asked tells the newest trace of all."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with client(url) as asking:
        await asking.post(
            "/v1/chat/completions", json=ASKED, headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        )
    for _ in range(6):
        async with client(url) as asking:
            told = await asking.get("/metrics", headers={"accept": "application/openmetrics-text"})
        assert f'# {{trace_id="{trace}"}}' in told.text and told.text.endswith("# EOF\n")


async def test_a_killed_worker_is_replaced_and_no_counter_goes_back(tmp_path: Path, upstream: FakeUpstream) -> None:
    async with serve(tmp_path, "--upstream", upstream.url) as running:
        for _ in range(10):
            await ask(running.url)
        assert await running.metric("nproxy_choices_total") == 10
        killed = next(iter(await running.pids()))
        os.kill(killed, signal.SIGHUP)  # the parent's signals are nothing to a worker
        os.kill(killed, signal.SIGUSR2)
        assert killed in await running.pids()
        os.kill(killed, signal.SIGKILL)
        await until(lambda: not psutil.pid_exists(killed), PATIENCE)
        for _ in range(5):  # the other one answers
            assert (await ask(running.url)).status_code == 200
        assert await running.metric("nproxy_choices_total") == 15

        async def back() -> bool:
            return len(await running.pids() - {killed}) == 2

        await eventually(back)
        assert await running.metric("nproxy_worker_restarts_total") == 1
        assert await running.metric("nproxy_choices_total") == 15
        said = "a worker was killed by SIGKILL; starting another in 0.5 s"
        (told,) = [line for line in running.lines() if said in line]
        assert f'"pid":{killed}' in told


async def test_limits_servers_and_settings_are_those_of_all_workers(tmp_path: Path, upstream: FakeUpstream) -> None:
    admin = f"http://127.0.0.1:{free_port()}"
    file = tmp_path / "nproxy.yaml"

    def write(max_n: int) -> None:
        settings = {
            "admin": {"port": int(admin.rsplit(":", 1)[1])},
            "upstreams": [{"name": "u", "replicas": [], "models": [MODEL], "n": "fanout", "api_key": SECRET}],
            "limits": {"inflight_choices": 8, "queue_seconds": 0},
            "n_policy": {"max_n": max_n},
        }
        file.write_text(json.dumps(settings))

    write(8)
    async with serve(tmp_path, "--config", str(file)) as running, client(admin) as operator:
        assert {(await ask(running.url)).status_code for _ in range(9)} == {503}, "there is no server yet"
        announced = await operator.post("/admin/upstreams/u/replicas", json={"url": upstream.url, "lease_seconds": 600})
        assert announced.status_code < 300, announced.text

        async def all_know() -> bool:
            return {(await ask(running.url)).status_code for _ in range(9)} == {200}

        await eventually(all_know)
        assert len((await operator.get("/status")).json()["workers"]) == 2
        assert await metric_of(operator, "nproxy_workers", state="serving") == 2

        for worker in psutil.Process(running.process.pid).children():
            assert SECRET not in f"{worker.cmdline()} {worker.environ()}"
        assert upstream.calls[-1].headers["authorization"] == f"Bearer {SECRET}", "they know it all the same"

        held = Behaviour(hold_after=1)
        upstream.behaviour = held
        streams = [asyncio.create_task(ask(running.url, stream=True, n=2)) for _ in range(4)]
        await upstream.until(lambda: len(upstream.open_calls) == 8, PATIENCE)
        refused = [await ask(running.url) for _ in range(9)]
        assert {answer.status_code for answer in refused} == {429}, "eight choices in all, whichever worker is asked"
        held.go_on.set()
        await asyncio.gather(*streams)
        upstream.behaviour = Behaviour()

        write(2)
        running.process.send_signal(signal.SIGHUP)

        async def all_follow() -> bool:
            return {(await ask(running.url, n=3)).status_code for _ in range(9)} == {400}

        await eventually(all_follow)
        assert await metric_of(operator, "nproxy_config_reloads_total", outcome="applied") == 1
        file.write_text("upstreams: 1")
        running.process.send_signal(signal.SIGHUP)
        await until(lambda: any("settings were not reloaded" in line for line in running.lines()), PATIENCE)
        assert await metric_of(operator, "nproxy_config_reload_success") == 0
        assert (await operator.post("/admin/restart")).status_code == 202
        await until(lambda: any("all workers were replaced" in line for line in running.lines()), PATIENCE)
        assert {(await ask(running.url, n=3)).status_code for _ in range(9)} == {400}, "the last good settings"
        assert {(await ask(running.url, n=2)).status_code for _ in range(9)} == {200}, (
            "and the server that came by itself"
        )
        assert SECRET not in running.log.read_text()


async def test_workers_write_their_lines_in_the_format_of_a_reload(tmp_path: Path, upstream: FakeUpstream) -> None:
    file = tmp_path / "nproxy.yaml"
    settings: dict[str, Any] = {"upstreams": [{"name": "u", "replicas": [upstream.url]}]}
    file.write_text(json.dumps(settings))
    async with serve(tmp_path, "--config", str(file)) as running:

        async def line() -> str:
            """The line of one more request."""
            async with client(running.url) as asking:
                id = (await asking.post("/v1/chat/completions", json=ASKED)).headers["x-request-id"]
            await until(lambda: id in running.log.read_text(), PATIENCE)
            return next(line for line in running.lines() if id in line)

        assert json.loads(await line())["message"] == "chat/completions"
        file.write_text(json.dumps({**settings, "telemetry": {"log_format": "text"}}))
        running.process.send_signal(signal.SIGHUP)
        await until(lambda: any("settings reloaded" in line for line in running.lines()), PATIENCE)

        async def all_follow() -> bool:
            return not any([(await line()).startswith("{") for _ in range(9)])

        await eventually(all_follow)


async def test_workers_begin_with_the_keys_that_were_good_last(tmp_path: Path, upstream: FakeUpstream) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(json.dumps({"keys": [{"name": "a", "hash": f"sha256:{digest_of(SECRET).hex()}"}]}))
    file = tmp_path / "nproxy.yaml"
    settings: dict[str, Any] = {
        "auth": {"api_keys_file": keys.name},
        "upstreams": [{"name": "u", "replicas": [upstream.url]}],
    }
    file.write_text(json.dumps(settings))
    async with serve(tmp_path, "--config", str(file)) as running:
        keys.write_text("keys: []")
        running.process.send_signal(signal.SIGUSR2)
        await until(lambda: any("all workers were replaced" in line for line in running.lines()), PATIENCE)
        async with client(running.url) as asking:
            shown = {"authorization": f"Bearer {SECRET}"}
            answer = await asking.post("/v1/chat/completions", json=ASKED, headers=shown)
            assert answer.status_code == 200
            assert (await asking.post("/v1/chat/completions", json=ASKED)).status_code == 401


async def test_workers_take_turns_at_a_server_with_room_for_one(tmp_path: Path, upstream: FakeUpstream) -> None:
    """Each sees the ends of its own calls only. Without news, a busy one takes back each slot it frees."""
    upstream.choose = lambda call: Behaviour(status=429) if len(upstream.open_calls) > 1 else Behaviour(pause=0.02)
    over, answered = asyncio.Event(), list[str]()  # by which of them, in the order of the answers

    async def asks(who: str, asking: httpx.AsyncClient) -> None:
        while not over.is_set():
            if (await asking.post("/v1/chat/completions", json=ASKED)).status_code == 200:
                answered.append(who)

    async with serve(tmp_path, "--upstream", upstream.url) as running, contextlib.AsyncExitStack() as stack:
        one, other = await running.pids()

        async def connected(idle: int) -> httpx.AsyncClient:
            """A client of the other worker: this one takes no connections meanwhile."""
            asking = await stack.enter_async_context(client(running.url))
            os.kill(idle, signal.SIGSTOP)
            try:
                assert (await asking.get("/health")).status_code == 200
            finally:
                os.kill(idle, signal.SIGCONT)
            return asking

        busy = [await connected(other) for _ in range(4)]
        late = [await connected(one) for _ in range(4)]
        tasks = [asyncio.create_task(asks("busy", asking)) for asking in busy]
        await until(lambda: len(answered) > 10, PATIENCE)
        tasks += [asyncio.create_task(asks("late", asking)) for asking in late]
        await until(lambda: "late" in answered, PATIENCE)
        answered.clear()
        await until(lambda: len(answered) > 60, PATIENCE)
        over.set()
        await asyncio.gather(*tasks)
        streaks = [len(list(same)) for _, same in itertools.groupby(answered)]
        assert max(streaks) < 12, "they take turns"


async def test_workers_end_when_their_parent_is_killed(tmp_path: Path, upstream: FakeUpstream) -> None:
    async with serve(tmp_path, "--upstream", upstream.url) as running:
        upstream.behaviour = Behaviour(hold_after=1)
        stream = asyncio.create_task(ask(running.url, stream=True))
        await upstream.until(lambda: len(upstream.open_calls) == 1, PATIENCE)
        family = psutil.Process(running.process.pid).children(recursive=True)
        assert len(family) == 2
        running.process.kill()
        await running.process.wait()
        await until(lambda: all(map(ended, family)), PATIENCE)
        assert "shutting_down" in (await stream).text, "it is not just cut"
    with socket.socket() as again:  # nobody listens any more
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", int(running.url.rsplit(":", 1)[1])))
        again.listen()


async def test_workers_are_renewed_under_streams_without_one_failed_request(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    going, streams = Behaviour(hold_after=1), 40
    upstream.choose = lambda call: going if call.body.get("stream") else None
    over, failures, answered = asyncio.Event(), list[str](), 0

    async def keep_asking(running: Running, *, reconnect: bool) -> None:
        nonlocal answered
        async with client(running.url) as asking:
            while not over.is_set():
                headers = {"connection": "close"} if reconnect else {}
                try:
                    answer = await asking.post("/v1/chat/completions", json=ASKED, headers=headers)
                except httpx.HTTPError as error:
                    failures.append(repr(error))
                else:
                    answered += 1
                    if answer.status_code != 200:
                        failures.append(answer.text)

    async with serve(tmp_path, "--upstream", upstream.url) as running:
        old = await running.pids()
        streaming = [asyncio.create_task(ask(running.url, stream=True)) for _ in range(streams)]
        await upstream.until(lambda: len(upstream.open_calls) >= streams, PATIENCE)
        asking = [asyncio.create_task(keep_asking(running, reconnect=number % 2 == 0)) for number in range(6)]
        running.process.send_signal(signal.SIGUSR2)
        await until(lambda: any("all workers were replaced" in line for line in running.lines()), PATIENCE)
        before = answered
        await until(lambda: answered > before + 20, PATIENCE)  # served by the new ones
        assert len(await running.pids() - old) == 2
        leaving = {worker["pid"] for worker in await running.workers() if worker["state"] == "leaving"}
        assert leaving <= old and leaving, "they have streams"
        assert await running.metric("nproxy_inflight_requests") >= streams
        over.set()
        await asyncio.gather(*asking)
        assert failures == []
        going.go_on.set()
        for answer in await asyncio.gather(*streaming):
            assert answer.text.endswith("data: [DONE]\n\n")
        await until(lambda: not any(map(psutil.pid_exists, old)), PATIENCE)
        assert await running.metric("nproxy_requests_total", endpoint="chat/completions") == answered + streams
        assert await running.metric("nproxy_worker_restarts_total") == 0, "nobody died"


async def test_a_new_worker_leaves_those_places_to_an_old_one_that_it_still_uses(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    going, most = Behaviour(hold_after=1), 0

    def choose(_: Seen) -> Behaviour:
        nonlocal most
        most = max(most, len(upstream.open_calls))
        return going

    upstream.choose = choose
    settings = tmp_path / "nproxy.yaml"
    settings.write_text(f"upstreams: [{{name: up, replicas: ['{upstream.url}'], parallel: 2}}]\n")
    async with serve(tmp_path, "--config", str(settings)) as running:
        old = await running.pids()
        asked: list[asyncio.Task[httpx.Response]] = []

        async def both_workers_have_one() -> bool:
            """The system chooses who accepts a connection, and a busy machine may choose one worker many times."""
            asked.append(asyncio.create_task(ask(running.url, stream=True)))
            await asyncio.sleep(0.05)
            return len(upstream.open_calls) == 2

        await until(both_workers_have_one, PATIENCE)
        running.process.send_signal(signal.SIGUSR2)
        await until(lambda: any("all workers were replaced" in line for line in running.lines()), PATIENCE)
        await asyncio.sleep(4 * LEGS_SECONDS)
        asked += [asyncio.create_task(ask(running.url, stream=True)) for _ in range(16)]
        await asyncio.sleep(1.0)
        assert most == 2
        going.go_on.set()
        for answer in await asyncio.gather(*asked):
            assert answer.text.endswith("data: [DONE]\n\n")
        await until(lambda: not any(map(psutil.pid_exists, old)), PATIENCE)
        assert most == 2
        assert (await ask(running.url)).status_code == 200


async def test_a_worker_that_is_told_to_end_is_replaced_first(tmp_path: Path, upstream: FakeUpstream) -> None:
    going = Behaviour(hold_after=1)
    upstream.choose = lambda call: going if call.body.get("stream") else None
    async with serve(tmp_path, "--upstream", upstream.url) as running:
        old = await running.pids()
        streaming = [asyncio.create_task(ask(running.url, stream=True)) for _ in range(16)]
        await upstream.until(lambda: len(upstream.open_calls) >= 16, PATIENCE)
        told = next(iter(old))
        os.kill(told, signal.SIGTERM)

        async def replaced() -> bool:
            async with client(running.url) as asking:
                assert (await asking.get("/ready")).status_code == 200, "nobody is to be taken out of a balancer for it"
            return told not in await running.pids()

        await eventually(replaced)
        assert len(await running.pids() - old) == 1, "the other one stays"
        going.go_on.set()
        for answer in await asyncio.gather(*streaming):
            assert answer.text.endswith("data: [DONE]\n\n")
        await until(lambda: not psutil.pid_exists(told), PATIENCE)
        assert await running.metric("nproxy_worker_restarts_total") == 0, "it has not died"
        calls = await running.metric("nproxy_replica_calls_total", replica=upstream.url, outcome="ok")
        assert calls == 16, "also those that ended just before the worker did"
        assert not any("starting another" in line for line in running.lines())


async def test_a_worker_that_is_told_twice_ends_although_another_is_ready_only_then(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    """The order to hand over, which comes when the other one is ready, gives streams no more time."""
    upstream.behaviour = held = Behaviour(hold_after=1)
    file = tmp_path / "nproxy.yaml"
    settings = {"listen": {"drain_seconds": 6}, "upstreams": [{"name": "u", "replicas": [upstream.url]}]}
    file.write_text(json.dumps(settings))
    async with serve(tmp_path, "--config", str(file)) as running:
        streaming = [asyncio.create_task(ask(running.url, stream=True)) for _ in range(4)]
        await upstream.until(lambda: len(upstream.open_calls) >= 4, PATIENCE)
        told = max(await running.workers(), key=lambda worker: worker["inflight"]["choices"])
        os.kill(told["pid"], signal.SIGTERM)
        await asyncio.sleep(0.05)  # a signal that follows at once may be merged with the first
        os.kill(told["pid"], signal.SIGTERM)
        await until(lambda: not psutil.pid_exists(told["pid"]), PATIENCE / 2)
        held.go_on.set()
        ended = [answer.text.count("shutting_down") for answer in await asyncio.gather(*streaming)]
        assert sum(ended) == told["inflight"]["choices"]
        assert await running.metric("nproxy_worker_restarts_total") == 0, "it was replaced"


async def test_ctrl_c_lets_streams_end(tmp_path: Path, upstream: FakeUpstream) -> None:
    going = Behaviour(hold_after=1)
    upstream.behaviour = going
    async with serve(tmp_path, "--upstream", upstream.url) as running:
        streams = [asyncio.create_task(ask(running.url, stream=True, n=2)) for _ in range(6)]
        await upstream.until(lambda: len(upstream.open_calls) >= 6, PATIENCE)
        for process in (*psutil.Process(running.process.pid).children(), running.process):
            process.send_signal(signal.SIGINT)  # as if all were in the terminal's group

        async def says_no() -> bool:
            async with client(running.url) as asking:
                return (await asking.get("/ready")).status_code == 503

        await eventually(says_no)
        going.go_on.set()
        for answer in await asyncio.gather(*streams):
            assert answer.text.endswith("data: [DONE]\n\n")
        async with asyncio.timeout(PATIENCE):
            assert await running.process.wait() == 0


async def test_a_second_signal_ends_at_once(tmp_path: Path, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(hold_after=1)
    async with serve(tmp_path, "--upstream", upstream.url) as running:
        stream = asyncio.create_task(ask(running.url, stream=True))
        await upstream.until(lambda: len(upstream.open_calls) == 1, PATIENCE)
        running.process.terminate()
        await until(lambda: any("draining" in line for line in running.lines()), PATIENCE)
        running.process.terminate()
        async with asyncio.timeout(25):  # less than the 30 s of a drain
            assert await running.process.wait() == 0
        assert "shutting_down" in (await stream).text


async def test_told_to_end_while_workers_start_it_does_not_say_that_it_listens(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, sys, time\n"
        "while 'nproxy.workers' in sys.orig_argv and not pathlib.Path(__file__).with_name('go').exists():\n"
        "    time.sleep(0.01)\n"
    )
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nproxy", "serve", "--port", "0", "--workers", "2"),
            *("--upstream", "http://127.0.0.1:9"),
            stderr=out,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
    await until(lambda: len(psutil.Process(process.pid).children()) == 2, PATIENCE)
    process.terminate()
    await until(lambda: "draining" in log.read_text(), PATIENCE)
    (tmp_path / "go").touch()
    async with asyncio.timeout(PATIENCE):
        assert await process.wait() == 0
    assert "listens" not in log.read_text()


async def test_workers_that_never_become_ready_are_given_up(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os, sys\nif 'nproxy.workers' in sys.orig_argv: os._exit(7)\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nproxy", "serve", "--port", "0", "--workers", "2", "--upstream", "http://127.0.0.1:9"),
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    async with asyncio.timeout(PATIENCE):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert said.decode().splitlines()[-1] == ("nproxy: no worker becomes ready: 3 in a row; the last one ended with 7")
    assert b"Traceback" not in said


async def test_one_worker_looks_for_all_and_another_when_it_is_gone(tmp_path: Path) -> None:
    health = {"interval": 1, "timeout": 1, "down_after": 2}
    async with FakeUpstream() as server, FakeUpstream() as other:
        upstream = {"name": "u", "replicas": [server.url, other.url], "models": [MODEL], "health": health}
        (tmp_path / "nproxy.yaml").write_text(json.dumps({"upstreams": [upstream]}))
        async with serve(tmp_path, "--config", str(tmp_path / "nproxy.yaml"), workers=4) as running:

            def one_looks() -> bool:
                """Whether the last looks were an interval apart, whoever made them."""
                times = [seen.opened for seen in server.requests[-6:]]
                return len(times) == 6 and all(later - sooner > 0.7 for sooner, later in itertools.pairwise(times))

            await until(one_looks, PATIENCE)
            for pid in sorted(await running.pids())[1:]:
                os.kill(pid, signal.SIGKILL)
            server.requests.clear()
            await until(one_looks, PATIENCE)
            await server.stop()

            async def down() -> bool:
                return await running.metric("nproxy_replica_up", replica=server.url) == 0

            await eventually(down)
            assert {(await ask(running.url)).status_code for _ in range(12)} == {200}
            await until(lambda: any("a replica is down" in line for line in running.lines()), PATIENCE)

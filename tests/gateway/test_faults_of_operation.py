"""Faults of operation: signals, logs that go nowhere, clocks that jump, addresses of other kinds."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import CHAT, Gateway, Start, Stream, body, gateway_for, upstream_settings
from tests.gateway.reloading import wrong_with_a_stream
from tests.gateway.served import Served, served

ROOT = Path(__file__).parents[2]


async def whole(process: Served, count: int = 10) -> None:
    """Some streams, each of which must be as it is expected."""
    for number in range(count):
        assert await wrong_with_a_stream(process.client, seed=number, n=2) is None


async def ended(process: Served, seconds: float = 60.0) -> int:
    async with asyncio.timeout(seconds):
        return await process.process.wait()


async def lines_are_dropped(process: Served, least: int) -> None:
    """Wait for it: the thread that writes the log counts them, a little after the answers."""
    async with asyncio.timeout(60):
        while await process.metric("nproxy_log_lines_dropped_total") < least:
            await asyncio.sleep(0.01)


async def test_sigterm_with_200_streams(upstream: FakeUpstream, tmp_path: Path) -> None:
    """Those that end while it drains are whole; a second SIGTERM ends the others with an error event; exit 0."""
    soon, never = Behaviour(hold_after=2), Behaviour(hold_after=2)
    upstream.choose = lambda call: soon if call.body["seed"] < 1000 else never
    file = tmp_path / "nproxy.yaml"
    file.write_text(yaml.safe_dump({"listen": {"drain_seconds": 600}, "upstreams": [upstream_settings(upstream)]}))
    async with served("--config", str(file)) as process:

        async def read(seed: int) -> Stream:
            answer = await process.client.post(CHAT, json=body(n=2, stream=True, seed=seed))
            return Stream(answer.status_code, answer.headers, answer.content)

        ending = [asyncio.create_task(read(number * 2)) for number in range(100)]
        held = [asyncio.create_task(read(1000 + number * 2)) for number in range(100)]
        await upstream.until(lambda: len(upstream.open_calls) == 400, 60)
        process.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            while (ready := await process.client.get("/ready")).status_code != 503:
                await asyncio.sleep(0.01)
        assert ready.json()["error"]["code"] == "not_ready"
        soon.go_on.set()
        for answer in await asyncio.gather(*ending):
            assert (answer.status, answer.done) == (200, True)
        assert not any(task.done() for task in held), "they have more time"
        process.process.send_signal(signal.SIGTERM)
        for answer in await asyncio.gather(*held):
            assert answer.chunks[-1]["error"]["code"] == "shutting_down"
            assert not answer.done
        assert await ended(process) == 0
    await upstream.until(lambda: not upstream.open_calls)


async def test_sighup_reloads_unless_it_says_that_the_terminal_is_closed(upstream: FakeUpstream) -> None:
    master, slave = os.openpty()
    async with served("--upstream", upstream.url, stdin=slave) as process:
        os.close(slave)
        process.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(60):
            while not await process.metric('nproxy_config_reloads_total{outcome="unchanged"}'):
                await asyncio.sleep(0.01)
        os.close(master)
        process.process.send_signal(signal.SIGHUP)
        assert await ended(process) == 0


async def test_standard_error_is_closed(upstream: FakeUpstream) -> None:
    async with served("--upstream", upstream.url, shell='exec "$@" 2>&-') as process:
        await whole(process)
        assert Path(f"/proc/{process.process.pid}/fd/2").readlink() == Path(os.devnull), "else a socket is number 2"
        process.process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0


async def test_nobody_reads_the_log_pipe_and_it_is_full(upstream: FakeUpstream) -> None:
    """Requests are answered all the same; what was logged comes when somebody reads; and it ends in time."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    filled = 0
    while True:
        try:
            filled += os.write(writer, b"\n" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(writer, True)
    try:
        async with served("--upstream", upstream.url, stderr=writer) as process:
            await whole(process)
            assert await process.metric("nproxy_log_lines_dropped_total") == 0
            os.set_blocking(reader, False)
            said = b""
            async with asyncio.timeout(60):
                while said.count(b'"endpoint"') + said.count(b'"status":200') < 10 or b"nproxy listens" not in said:
                    try:
                        said += os.read(reader, 1 << 16)
                    except BlockingIOError:
                        await asyncio.sleep(0.01)
            os.set_blocking(writer, False)
            while True:
                try:
                    os.write(writer, b"\n" * 4096)
                except BlockingIOError:
                    break
            os.set_blocking(writer, True)
            await whole(process)
            process.process.send_signal(signal.SIGTERM)
            assert await ended(process) == 0
    finally:
        os.close(reader)
        os.close(writer)


async def test_the_log_pipe_is_closed(upstream: FakeUpstream) -> None:
    reader, writer = os.pipe()
    async with served("--upstream", upstream.url, stderr=writer) as process:
        os.close(writer)
        os.close(reader)
        await whole(process)
        await lines_are_dropped(process, 10)
        process.process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0


async def test_the_disk_is_full(upstream: FakeUpstream) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        async with served("--upstream", upstream.url, stderr=full) as process:
            await whole(process)
            await lines_are_dropped(process, 10)
            process.process.send_signal(signal.SIGTERM)
            assert await ended(process) == 0


async def test_a_log_that_is_read_loses_nothing(upstream: FakeUpstream, tmp_path: Path) -> None:
    """Not even what was said last."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        async with served("--upstream", upstream.url, stderr=file) as process:
            await whole(process, 50)
            process.process.send_signal(signal.SIGTERM)
            assert await ended(process) == 0
    said = log.read_text()
    assert said.count('"message":"chat/completions"') == 50
    assert '"message":"draining"' in said


WALL_CLOCK = {
    "nproxy/cli/bench/command.py": "when a measurement began, for who reads it",
    "nproxy/cli/keys/state.py": "whether keys have expired, for who lists them or adds one",
    "nproxy/gateway/generate.py": "created",
    "nproxy/gateway/response_writer.py": "Date",
    "nproxy/gateway/edge.py": "when keys expire",
    "nproxy/telemetry/logs.py": "when a request was over, in its line",
    "nproxy/telemetry/observed.py": "when an exemplar was observed, as OpenMetrics tells times",
    "nproxy/gateway/tls.py": "whether the certificate has expired",
    "nproxy/gateway/spans.py": "when spans end, as OpenTelemetry tells times",
    "nproxy/gateway/reload.py": "when settings were read",
    "nproxy/upstreams/retry_after.py": "an upstream's Retry-After as a date",
}
"""The only places that ask for the time of day, and for what."""


def test_clock_jumps_move_no_timer() -> None:
    """Timers, deadlines, leases and rates go by clocks that never go back."""
    asking = set()
    for file in sorted((ROOT / "nproxy").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                asked = (node.value.id, node.attr)
                if asked in {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}:
                    asking.add(str(file.relative_to(ROOT)))
    assert asking == WALL_CLOCK.keys()


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
async def test_clock_jumps_do_nothing_to_a_stream(
    start: Start, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    gateway: Gateway = await start(timeouts={"first_event": 20, "idle": 20})
    going = upstream.behaviour = Behaviour(hold_after=2)
    asked = asyncio.create_task(gateway.stream(n=2, seed=1))
    await upstream.until(lambda: len(upstream.open_calls) == 2)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump)
    going.go_on.set()
    assert (await asked).done
    upstream.behaviour = Behaviour()
    assert abs((await gateway.ask(n=2)).json()["created"] - now() - jump) < 60


async def test_ipv6() -> None:
    async with FakeUpstream(host="::1") as upstream:
        assert "[::1]" in upstream.url
        async with gateway_for(
            {"listen": {"host": "::1", "port": 0}, "upstreams": [upstream_settings(upstream)]}
        ) as gateway:
            assert gateway.url.startswith("http://[::1]:")
            assert (await gateway.stream(n=3, seed=5)).done
        async with served("--upstream", upstream.url, host="::1") as process:
            await whole(process, 2)


async def test_an_upstream_behind_a_unix_socket(tmp_path: Path) -> None:
    socket = tmp_path / "up.sock"
    upstream = FakeUpstream(unix=str(socket))
    async with gateway_for({"upstreams": [upstream_settings(upstream, breaker=None)]}) as gateway:
        async with upstream:
            assert (await gateway.stream(n=3, seed=5)).done
        assert (await gateway.ask(n=2)).status_code == 502
        socket.unlink(missing_ok=True)
        async with upstream:
            assert (await gateway.stream(n=3, seed=5)).done, "another process listens at the same path"


async def test_metrics_scraped_under_load(gateway: Gateway, upstream: FakeUpstream) -> None:
    """Each scrape is whole, no counter goes back, and at the end everything has been counted."""
    upstream.behaviour = Behaviour(pause=0.001)
    over = False

    async def scrape() -> None:
        seen: dict[tuple[str, ...], float] = {}
        while not over:
            text = (await gateway.client.get("/metrics")).text
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    series = (sample.name, *map(str, sorted(sample.labels.items())))
                    if family.type == "counter" or sample.name.endswith(("_bucket", "_count")):
                        assert sample.value >= seen.get(series, 0.0), series
                        seen[series] = sample.value

    async with asyncio.TaskGroup() as scrapers:
        for _ in range(2):
            scrapers.create_task(scrape())
        for _ in range(4):
            answers = await asyncio.gather(*(gateway.stream(n=4, seed=seed) for seed in range(10)))
            assert all(answer.done for answer in answers)
        over = True
    labels = 'code="200",endpoint="chat/completions",mode="fanout",model="fake-model",upstream="fake"'
    assert await gateway.metric(f"nproxy_requests_total{{{labels}}}") == 40
    assert await gateway.metric("nproxy_inflight_choices") == 0

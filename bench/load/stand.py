"""The stand that a bar runs on: upstreams and a gateway as processes, and their resource usage, read from outside."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.clients import plain_client
from tests.ports import free_port
from tests.real.processes import ROOT

START_SECONDS = 60.0
END_SECONDS = 60.0


def raise_file_limit() -> int:
    """Raise the limit of open files to the maximum allowed, and return it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def demand_files(needed: int) -> None:
    """Raise SystemExit if a process may not open so many files."""
    allowed = raise_file_limit()
    if allowed < needed:
        sys.exit(f"this bar opens {needed} files in one process, and the hard limit is {allowed}: raise `ulimit -Hn`")


@dataclass(frozen=True, slots=True)
class Process:
    """A process and the port it listens on."""

    child: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def family(self) -> list[psutil.Process]:
        """Return this process and all its descendants."""
        try:
            first = psutil.Process(self.child.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


@dataclass(frozen=True, slots=True)
class Usage:
    """The memory (RSS, in bytes) and open files of a family of processes, and the CPU seconds it has used."""

    rss: int
    files: int
    cpu: float

    @classmethod
    def of(cls, family: Sequence[psutil.Process]) -> Usage:
        rss, files, cpu = 0, 0, 0.0
        for process in family:
            try:
                with process.oneshot():
                    rss += process.memory_info().rss
                    files += process.num_fds()
                    times = process.cpu_times()
                    cpu += times.user + times.system
            except psutil.Error:
                continue  # it has ended meanwhile
        return cls(rss, files, cpu)


@dataclass(slots=True)
class Watch:
    """Watches the usage of a process and its descendants, every `interval` seconds. curve: (seconds, MiB)."""

    process: Process
    interval: float = 1.0
    curve: list[tuple[float, float]] = field(default_factory=list)
    _spent: dict[int, tuple[float, float]] = field(default_factory=dict)
    _seconds: float = 0.0

    async def look(self) -> None:
        """Watch until cancelled."""
        begun = time.monotonic()
        while True:
            rss = 0
            self._seconds = time.monotonic() - begun
            for one in self.process.family():
                usage = Usage.of([one])
                rss += usage.rss
                if usage.rss:  # it has not ended meanwhile
                    first, _ = self._spent.get(one.pid, (usage.cpu if self._seconds < 0.5 else 0.0, 0.0))
                    self._spent[one.pid] = first, usage.cpu
            self.curve.append((round(self._seconds, 1), mebibytes(rss)))
            await asyncio.sleep(self.interval)

    @property
    def cpu(self) -> float:
        """Share of a core, including processes that have ended meanwhile."""
        return sum(last - first for first, last in self._spent.values()) / max(0.5, self._seconds)

    @property
    def most(self) -> float:
        """The largest RSS that was seen, in MiB."""
        return max((rss for _, rss in self.curve), default=0.0)

    def thinned(self, points: int = 30) -> list[tuple[float, float]]:
        """Return the curve with about so many points."""
        return self.curve[:: max(1, len(self.curve) // points)]


def mebibytes(size: float) -> float:
    return round(size / (1 << 20), 1)


class Gateway(Process):
    """`nproxy serve`, started as users do."""

    async def gauges(self) -> dict[str, float]:
        """Return the sums of the metrics over all labels, by name."""
        async with plain_client() as client:
            text = (await client.get(f"{self.url}/metrics")).raise_for_status().text
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    async def status(self) -> Any:
        async with plain_client() as client:
            return (await client.get(f"{self.url}/status")).raise_for_status().json()

    async def wait_idle(self, seconds: float) -> dict[str, float]:
        """Return the gauges of work in flight once they are all 0, or as they are when the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            gauges = await self.gauges()
            busy = {name: gauges.get(name, 0.0) for name in INFLIGHT}
            if not any(busy.values()) or time.monotonic() > deadline:
                return busy
            await asyncio.sleep(0.1)


INFLIGHT = ("nproxy_inflight_requests", "nproxy_inflight_choices", "nproxy_inflight_legs", "nproxy_queue_choices")


class Upstream(Process):
    """A lean upstream (bench/load/upstream.py)."""

    async def counts(self) -> dict[str, int]:
        async with plain_client() as client:
            counts: dict[str, int] = (await client.get(f"{self.url}/counts")).json()
        return counts

    async def refuse(self, share: float) -> None:
        """Answer this share of calls with a 503 from now on."""
        async with plain_client() as client:
            await client.post(f"{self.url}/faults", json={"refuse": share})


class Stand:
    """Starts upstreams and gateways; they end with it."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder

    async def upstream(self, pace: float, *, close: bool = False) -> Upstream:
        """Start a lean upstream. pace: tokens per second of each stream. close: end connections after every answer."""
        port = free_port()
        words = ["-m", "bench.load.upstream", "--port", str(port), "--pace", str(pace), *(["--close"] * close)]
        child = await self._start(words, port, "/v1/models", "upstream")
        return Upstream(child, port)

    async def gateway(self, config: dict[str, Any]) -> Gateway:
        """Start a gateway with this configuration on a free port."""
        port = free_port()
        whole = {**config, "listen": {"host": "127.0.0.1", "port": port, **config.get("listen", {})}}
        file = self.config_file(whole)
        child = await self._start(["-m", "nproxy", "serve", "--config", str(file)], port, "/ready", "gateway")
        return Gateway(child, port)

    def config_file(self, config: dict[str, Any]) -> Path:
        """Write a configuration; JSON is YAML."""
        file = self._folder / "nproxy.yaml"
        file.write_text(json.dumps(config))
        return file

    async def _start(self, words: list[str], port: int, ready: str, name: str) -> subprocess.Popen[bytes]:
        log = self._folder / f"{name}-{port}.log"
        with log.open("wb") as out:
            child = subprocess.Popen([sys.executable, *words], stdout=out, stderr=subprocess.STDOUT, cwd=ROOT)
        self._stack.push_async_callback(_end, child)
        deadline = time.monotonic() + START_SECONDS
        async with plain_client() as client:
            while time.monotonic() < deadline and child.poll() is None:
                try:
                    if (await client.get(f"http://127.0.0.1:{port}{ready}")).status_code == 200:
                        return child
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
        raise RuntimeError(f"{name} is not ready:\n{log.read_text(errors='replace')[-4000:]}")


@asynccontextmanager
async def stand(folder: Path) -> AsyncIterator[Stand]:
    """Open a stand whose processes have their configuration and logs in `folder`."""
    async with AsyncExitStack() as stack:
        yield Stand(stack, folder)


async def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS
    while child.poll() is None and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    if child.poll() is None:
        child.kill()
        child.wait()
        raise RuntimeError(f"a process did not end within {END_SECONDS:.0f} s of SIGTERM")


def settings(*upstreams: str, limits: dict[str, Any] | None = None, **upstream: Any) -> dict[str, Any]:
    """Return a gateway's configuration for replicas at these URLs, with JSON logs."""
    fleet = {"name": "load", "replicas": list(upstreams), "models": ["load"], "n": "fanout", **upstream}
    config: dict[str, Any] = {"upstreams": [fleet], "telemetry": {"log_format": "json"}}
    return config if limits is None else {**config, "limits": limits}


def cores() -> int:
    return len(os.sched_getaffinity(0))

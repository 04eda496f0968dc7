"""Measure how long a request's body blocks the event loop: `python bench/stall.py [--record FILE]`.

The gateway runs in this process; an upstream that answers at once and a client that sends bodies of 10 MiB run in two
other processes. Each figure is the longest pause of a task that only sleeps 1 ms at a time, as the median of 5. The
first row shows the pauses of an idle loop.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import platform
import statistics
import time
import urllib.error
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import uvloop

from nproxy.config import Config
from nproxy.gateway.serve import running

SIZE = (10 << 20) - 1000
ROUNDS = 5


def chat(content: bytes) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":' + content + b"}]}"


def prompt(content: bytes) -> bytes:
    return b'{"model":"m","prompt":' + content + b"}"


def filled(unit: bytes) -> bytes:
    """Return an array of as many units as fit."""
    return b"[" + b",".join([unit] * (SIZE // (len(unit) + 1))) + b"]"


BODIES = {
    "nothing": b"",
    "10 MiB of text": chat(b'"' + b"Hello world, it is. " * (SIZE // 20) + b'"'),
    "10 MiB of escapes": chat(b'"' + b"\\n" * (SIZE // 2) + b'"'),
    "10 MiB of escaped emoji": chat(b'"' + b"\\ud83d\\ude00" * (SIZE // 12) + b'"'),
    "1M token ids": prompt(b"[" + b",".join(b"%d" % (i * 7919 % 50_000) for i in range(1_000_000)) + b"]"),
    "8 x 125k token ids": prompt(
        b"[" + b",".join([b"[" + b",".join(b"%d" % (i % 50_000) for i in range(125_000)) + b"]"] * 8) + b"]"
    ),
    "60,000 messages' worth of objects": b'{"model":"m","messages":['
    + b",".join([b'{"role":"user","content":"' + b"x" * 120 + b'"}'] * 60_000)
    + b"]}",
    "10 MiB of small arrays": chat(filled(b"[]")),
    "10 MiB of numbers": prompt(filled(b"1")),
    "10 MiB of nested objects": chat(filled(b'{"a":{"b":{}}}')),
    "10 MiB of strings": chat(filled(b'""')),
    "10 MiB deep": chat(b"[" * SIZE),
}


def send(url: str, name: str) -> int:
    path = "/v1/completions" if b'"prompt"' in BODIES[name][:40] else "/v1/chat/completions"
    request = urllib.request.Request(url + path, BODIES[name], {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


async def longest_pause(stop: asyncio.Event) -> float:
    longest, last = 0.0, time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last - 0.001), now
    return longest * 1000


async def measure(url: str, clients: ProcessPoolExecutor, name: str) -> tuple[list[float], int]:
    pauses, status = [], 0
    for _ in range(ROUNDS):
        stop = asyncio.Event()
        watching = asyncio.create_task(longest_pause(stop))
        if name == "nothing":
            await asyncio.sleep(0.5)
        else:
            status = await asyncio.get_running_loop().run_in_executor(clients, send, url, name)
        stop.set()
        pauses.append(await watching)
    return pauses, status


async def answer_anything(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection of the upstream: read each request and answer with one word."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while asked := await reader.readuntil(b"\r\n\r\n"):
            length = next(
                (int(line[15:]) for line in asked.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
            )
            left = length
            while left:
                left -= len(await reader.read(min(left, 1 << 20)))
            said = {"message": {"role": "assistant", "content": "ok"}} if b"/chat/" in asked else {"text": "ok"}
            body = json.dumps({"id": "x", "choices": [{"index": 0, "finish_reason": "stop", **said}]})
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write((head + body).encode())


def upstream(port: multiprocessing.Queue[int]) -> None:
    async def serve() -> None:
        server = await asyncio.start_server(answer_anything, "127.0.0.1", 0)
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


async def main() -> dict[str, object]:
    context = multiprocessing.get_context("spawn")
    ports: multiprocessing.Queue[int] = context.Queue()
    other = context.Process(target=upstream, args=(ports,), daemon=True)
    other.start()
    at = f"http://127.0.0.1:{ports.get()}/v1"
    config = Config.model_validate(
        {"listen": {"port": 0}, "upstreams": [{"name": "u", "replicas": [at], "models": ["m"]}]}
    )
    rows: dict[str, object] = {}
    print(f"Python {platform.python_version()}, median and all of {ROUNDS}, ms")
    async with running(config) as gateway:
        with ProcessPoolExecutor(1, context) as clients:
            for name in BODIES:
                pauses, status = await measure(gateway.url, clients, name)
                rows[name] = {"status": status, "median_ms": round(statistics.median(pauses), 1)}
                shown = " ".join(f"{pause:.0f}" for pause in pauses)
                print(f"{name:36} {status or '':4} {statistics.median(pauses):7.1f}   {shown}", flush=True)
    other.terminate()
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    rows = uvloop.run(main())
    if arguments.record is not None:
        arguments.record.write_text(json.dumps({"python": platform.python_version(), "stalls": rows}, indent=1) + "\n")

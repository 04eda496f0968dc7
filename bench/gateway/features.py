"""What the gateway's own features cost: the same load with each of them, beside a gateway without.

    python -m bench.gateway.features [--only keys,workers] [--starts 3] [--rounds 5] [--seconds 1]

Whole answers with 64 connections, as in `python -m bench.gateway`; in turns, as in `python -m bench.gateway.turns`. All
processes of a gateway share one core, so that workers are measured by what they spend, not by how many cores there are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from bench.engine.options import chosen
from bench.gateway.cases import CASES
from bench.gateway.peers import HERE, PEERS, Peer
from bench.gateway.turns import add_lengths, play, table

PLAIN = "nothing"
KEY = "sk-bench-0123456789abcdefghij"
"""The key of settings/keys.yaml."""

OPENAI_CLIENT: Mapping[str, str] = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "Connection": "keep-alive",
    "User-Agent": "OpenAI/Python 2.8.1",
    "X-Stainless-Arch": "x64",
    "X-Stainless-Async": "false",
    "X-Stainless-Lang": "python",
    "X-Stainless-OS": "Linux",
    "X-Stainless-Package-Version": "2.8.1",
    "X-Stainless-Runtime": "CPython",
    "X-Stainless-Runtime-Version": "3.11.7",
    "X-Stainless-Read-Timeout": "600",
    "X-Stainless-Retry-Count": "0",
}
TRACED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}

_PLAIN = PEERS["nproxy"]


def _with(
    *, environment: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None, settings: str = ""
) -> Peer:
    """Return nproxy with further environment variables, headers of requests, or other settings."""
    return replace(
        _PLAIN,
        environment=lambda: environment or {},
        headers=lambda scene: headers or {},
        settings=settings or _PLAIN.settings,
    )


def features(collector: str = "") -> Mapping[str, Peer]:
    """Return nproxy with one feature each. collector: the base URL of one for traces.

    client: the headers that OpenAI's library for Python sends. traced: a header of a trace, which is passed on. keys:
    with limits of requests, choices and tokens per minute. replicas, affinity, resume: sixteen replicas; with affinity
    prompts have homes. workers: two. traces: each request is traced, and its two spans sent to the collector.
    """
    replicas, keys = "settings/replicas.yaml", str(HERE / "settings" / "keys.yaml")
    return {
        PLAIN: _PLAIN,
        "access log": PEERS["nproxy with access log"],
        "client": _with(headers=OPENAI_CLIENT),
        "traced": _with(headers=TRACED),
        "keys": _with(environment={"NPROXY_AUTH__API_KEYS_FILE": keys}, headers={"Authorization": f"Bearer {KEY}"}),
        "replicas": _with(settings=replicas),
        "affinity": _with(settings=replicas, environment={"NPROXY_UPSTREAMS__0__BALANCE": "prefix_affinity"}),
        "resume": _with(settings=replicas, environment={"NPROXY_UPSTREAMS__0__RESUME": "replay"}),
        "workers": _with(environment={"NPROXY_LISTEN__WORKERS": "2"}),
        "traces": _with(environment={"NPROXY_TELEMETRY__OTLP_ENDPOINT": collector}),
    }


@contextmanager
def collector() -> Iterator[str]:
    """Accept traces while the block runs, and throw them away; yields the URL."""

    class Accepts(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Accepts) as server:
        serving = Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def main(words: Sequence[str]) -> int:
    """Play, and print the table."""
    parser = argparse.ArgumentParser(prog="bench.gateway.features", description=(__doc__ or "").splitlines()[0])
    every = features()
    parser.add_argument("--only", help=f"some of {', '.join(every)}; with commas between")
    parser.add_argument("--case", default="whole-64", choices=CASES, help="the load (whole-64)")
    add_lengths(parser, starts=3)
    asked = parser.parse_args(words)
    names = chosen(asked.only, every, always=PLAIN, fail=parser.error)
    cases = {asked.case: CASES[asked.case]}
    with collector() as url:
        peers = {name: peer for name, peer in features(url).items() if name in names}
        found = play(peers, cases, starts=asked.starts, rounds=asked.rounds, seconds=asked.seconds)
    print(table(found, PLAIN, f"by {PLAIN}"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

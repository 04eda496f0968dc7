"""Four gateways under a real Prometheus, and a load with every kind of answer and fault, so that no metric stays 0.

main     two workers and the built-in engine; upstreams that fan out, break off, fail, refuse nproxy's key, are not
         there or have a name that does not resolve, and one that is a fallback; keys, one of which has a rate limit
narrow   admits four choices and queues four; its trace collector is not there
short    uses more memory than its limit
secure   serves TLS, with a certificate that expires within the hour
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import trustme
import yaml

from nproxy.config import digest_of
from tests.clients import plain_client
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream
from tests.gateway.secure import put
from tests.ports import free_port
from tests.real.fixtures import MODEL as ENGINES
from tests.real.processes import Server, nproxy, server

KEYS = {"team": "sk-of-the-team", "slow": "sk-of-the-slow"}
STEADY = "The lighthouse stands where the river meets the sea, and its keeper counts the ships that pass. " * 3


@dataclass(frozen=True, slots=True)
class Monitored:
    """The gateways by name, and the addresses of their metrics."""

    gateways: dict[str, Server]
    targets: dict[str, str]
    settings: Path
    odd: FakeUpstream

    @classmethod
    @asynccontextmanager
    async def started(cls, folder: Path) -> AsyncIterator[Self]:
        """Start all gateways, with scripted upstreams in this process and the default model in the engine."""
        async with AsyncExitStack() as stack:
            behaviours = {
                "first": Behaviour(pause=0.002),
                "second": Behaviour(pause=0.002),
                "cutting": Behaviour(end_after=3, end="cut"),
                "failing": Behaviour(pause=0.002),
                "broken": Behaviour(status=500, body=b"{}"),
                "refusing": Behaviour(status=401, body=b"{}"),
                "substitute": Behaviour(pause=0.002),
                "slow": Behaviour(pause=0.1),
            }
            fakes = {
                name: await stack.enter_async_context(FakeUpstream(behaviour, models=[name, MODEL]))
                for name, behaviour in behaviours.items()
            }
            fakes["failing"].choose = lambda call: (
                None if call.body.get("stream") else Behaviour(status=500, body=b"{}")
            )
            urls = {name: fake.url for name, fake in fakes.items()}
            admin = free_port()
            settings = {
                "main": _main(folder, urls, admin),
                "narrow": {
                    "upstreams": [_upstream("slow", [urls["slow"]])],
                    "n_policy": {"max_n": 4},
                    "limits": {"inflight_choices": 4, "queue_choices": 4, "queue_seconds": 0.2},
                    "telemetry": {"otlp_endpoint": f"http://127.0.0.1:{free_port()}"},
                },
                "short": {"upstreams": [_upstream("slow", [urls["slow"]])], "limits": {"memory_mib": 1}},
            }
            gateways = {}
            for name, wanted in settings.items():
                (folder / f"{name}.yaml").write_text(json.dumps(wanted))
                running = nproxy("--config", str(folder / f"{name}.yaml"), log=folder / f"{name}.log", seconds=120.0)
                gateways[name] = await asyncio.to_thread(stack.enter_context, running)  # it asks upstreams of this loop
            targets = {name: server.url.removeprefix("http://") for name, server in gateways.items()}
            targets["main"] = f"127.0.0.1:{admin}"
            secure = await asyncio.to_thread(stack.enter_context, _secure(folder, urls["slow"]))
            targets["secure"] = secure.url.removeprefix("http://")
            yield cls(gateways, targets, folder / "main.yaml", fakes["second"])

    async def load(self) -> None:
        """Send one round of requests: complete ones, broken ones, wide ones and refused ones."""
        main, narrow, short = (
            plain_client(self.gateways[name].url, timeout=120, limits=httpx.Limits())
            for name in ("main", "narrow", "short")
        )
        async with main, narrow, short:
            self.odd.script(Behaviour(before_head="reset"), Behaviour(end_after=2, end="cut"))
            rounds = [
                _ask(main, ENGINES, 4, 2, prompt=STEADY),
                _ask(main, "pair", 3, 6),
                _ask(main, "pair", 3, 2, stream=False),
                _ask(main, "cutting", 1, 4),
                _ask(main, "failing", 1, 20, stream=False),
                _ask(main, "failing", 1, 1),
                _ask(main, "refusing", 1, 2, stream=False),
                _ask(main, "gone", 2, 3),
                _ask(main, "odd", 2, 3),
                _ask(main, "pair", 1, 4, key="slow"),
                _ask(narrow, MODEL, 4, 6),
                _ask(short, MODEL, 1, 2),
            ]
            await asyncio.gather(*rounds)

    def break_settings(self) -> None:
        """Write a settings file that the main gateway refuses."""
        self.settings.write_text("upstreams: nonsense\n")

    async def kill_a_worker_and_the_engine(self) -> None:
        """Kill one worker and one process of the engine, as the system does when memory runs out."""
        async with plain_client(f"http://{self.targets['main']}", timeout=60) as admin:
            workers = (await admin.get("/status")).json()["workers"]
        psutil.Process(workers[0]["pid"]).kill()
        for process in self.gateways["main"].children():
            if "engine" in process.cmdline():
                process.kill()
                break


def _main(folder: Path, urls: dict[str, str], admin: int) -> dict[str, Any]:
    keys = [{"name": name, "hash": f"sha256:{digest_of(key).hex()}"} for name, key in KEYS.items()]
    keys[1]["requests_per_minute"] = 1  # type: ignore[assignment]
    (folder / "keys.yaml").write_text(yaml.safe_dump({"keys": keys}))
    gone = f"http://127.0.0.1:{free_port()}/v1"
    looks = {"interval": 0.2, "timeout": 2, "down_after": 1}
    return {
        "listen": {"workers": 2},
        "admin": {"port": admin},
        "auth": {"api_keys_file": "keys.yaml"},
        "engine": {"dtype": "float32", "num_blocks": 256},
        "upstreams": [
            _upstream(
                "pair",
                [urls["first"], urls["second"], urls["broken"]],
                n="fanout",
                resume="replay",
                retries={"per_leg": 3},
                health=looks,
                breaker={"in_a_row": 3, "open": 300},
            ),
            _upstream("cutting", [urls["cutting"]], resume="replay", retries={"per_leg": 0}, breaker=None),
            _upstream("failing", [urls["failing"]], retries={"per_leg": 0}, breaker=None),
            _upstream("refusing", [urls["refusing"]], api_key="revoked"),
            _upstream("gone", [gone], fallback=["substitute"], health=looks, breaker={"in_a_row": 1, "open": 300}),
            _upstream("nowhere", ["dns:fleet.invalid:8000"]),
            _upstream("substitute", [urls["substitute"]], models={"substitute": MODEL, "gone": MODEL, "odd": MODEL}),
        ],
    }


@contextmanager
def _secure(folder: Path, url: str) -> Iterator[Server]:
    """Start a gateway with TLS; the returned server is its admin port, which has no TLS."""
    port, admin = free_port(), free_port()
    ends = datetime.now(UTC) + timedelta(minutes=50)
    tls = put(folder, trustme.CA().issue_cert("127.0.0.1", not_after=ends))
    settings = {"listen": {"tls": tls}, "admin": {"port": admin}, "upstreams": [_upstream("slow", [url])]}
    (folder / "secure.yaml").write_text(json.dumps(settings))
    argv = [sys.executable, "-m", "nproxy", "serve", "--config", str(folder / "secure.yaml"), "--port", str(port)]
    with server(argv, port=admin, log=folder / "secure.log", ready="/health") as running:
        yield running


def _upstream(name: str, replicas: Sequence[str], **more: Any) -> dict[str, Any]:
    return {"name": name, "replicas": [*replicas], "models": {name: MODEL, MODEL: MODEL}, "n": "auto", **more}


async def _ask(
    client: httpx.AsyncClient,
    model: str,
    n: int,
    times: int,
    *,
    prompt: str = "hi",
    key: str = "team",
    max_tokens: int = 16,
    stream: bool = True,
) -> None:
    """Send `times` requests at once, and ignore the answers."""
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "n": n,
        "max_tokens": max_tokens,
        "stream": stream,
    }
    headers = {"authorization": f"Bearer {KEYS[key]}"}
    post = client.post("/v1/chat/completions", json=asked, headers=headers)
    rest = [client.post("/v1/chat/completions", json=asked, headers=headers) for _ in range(times - 1)]
    await asyncio.gather(post, *rest)

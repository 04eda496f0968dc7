"""The surroundings of a page's blocks: scripted servers at the page's addresses, files, a gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field

from tests.fakes.behaviour import Behaviour
from tests.fakes.upstream import FakeUpstream


@dataclass(frozen=True)
class Kind:
    """A kind of scripted server: how it handles `n`, and the models that it lists."""

    models: tuple[str, ...]
    behaviour: Behaviour = field(default_factory=Behaviour)


OLLAMA = Kind(("llama3.2:latest",))
LLAMA_CPP = Kind(("qwen3-8b",), Behaviour(n="native", width=4))
VLLM = Kind(("qwen3-8b",), Behaviour(n="native"))
MLX_LM = Kind(("mlx-community/Qwen3-8B-4bit",))
TRANSFORMERS = Kind(("Qwen/Qwen3-8B",))
SGLANG = Kind(("Qwen/Qwen3-8B",), Behaviour(n="native"))
NO_N = Kind(("llama-3.3-70b-versatile", "gemini-3-flash-preview"), Behaviour(n="refuse"))


@dataclass(frozen=True)
class Scene:
    """The surroundings of one page."""

    servers: Mapping[str, Kind] = field(default_factory=dict)
    """Scripted servers by their addresses on the page."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Replacements for other words of the page."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the reader already has."""
    config: str = ""
    """If set, the gateway runs from the start with this file."""
    engine: bool = False
    """Whether the engine with the default model runs from the start, at the page's address of nproxy."""


_FLEET = """\
admin: {host: 127.0.0.1, port: 9000, token: "${ADMIN}"}
upstreams:
  - {name: fleet, replicas: ["http://10.0.0.1:8000/v1"]}
"""

SCENES: Mapping[str, Scene] = {
    "README.md": Scene({"127.0.0.1:11434": OLLAMA, "10.0.0.1:8000": VLLM}, engine=True),
    "docs/guides/benchmarking.md": Scene(
        {"10.0.0.1:8000": VLLM}, words={"--requests 100": "--requests 4", "--seconds 60": "--seconds 0.1"}
    ),
    "docs/guides/choices.md": Scene(engine=True),
    "docs/guides/engine.md": Scene(engine=True),
    "docs/guides/evals.md": Scene({"10.0.0.1:8000": VLLM}, config=_FLEET),
    "docs/guides/hosted-apis.md": Scene(
        {"127.0.0.1:8101": NO_N, "127.0.0.1:8102": NO_N},
        words={
            "https://api.groq.com/openai": "http://127.0.0.1:8101",
            "https://generativelanguage.googleapis.com/v1beta/openai": "http://127.0.0.1:8102/v1",
        },
    ),
    "docs/guides/llama-cpp.md": Scene({"127.0.0.1:8080": LLAMA_CPP}),
    "docs/guides/mlx-lm.md": Scene({"127.0.0.1:8080": MLX_LM}),
    "docs/guides/ollama.md": Scene({"127.0.0.1:11434": OLLAMA}),
    "docs/guides/operating.md": Scene(
        {"10.0.0.1:8000": VLLM, "10.0.0.2:8000": VLLM},
        words={" PID": ' "$(cat "$NOTES/serving")"', "workers: 2": "workers: 1"},
    ),
    "docs/guides/probe.md": Scene({"127.0.0.1:11434": OLLAMA}),
    "docs/guides/rl-rollouts.md": Scene({"10.0.0.1:8000": VLLM, "10.0.0.2:8000": VLLM}),
    "docs/guides/sglang.md": Scene({"127.0.0.1:30000": SGLANG}),
    "docs/guides/terminal.md": Scene(engine=True),
    "docs/guides/transformers-serve.md": Scene({"127.0.0.1:8001": TRANSFORMERS}),
    "docs/guides/vllm.md": Scene({"127.0.0.1:8001": VLLM, "10.0.0.1:8000": VLLM, "10.0.0.2:8000": VLLM}),
    "docs/fleet.md": Scene(
        {"10.0.0.1:8000": VLLM, "10.0.0.7:8000": VLLM, "10.0.0.7:8001": VLLM},
        words={"gateway:9000": "127.0.0.1:9000", "-HUP PID": '-HUP "$(cat "$NOTES/serving")"'},
        files={"key.txt": "a-key-that-there-was-before-it-0123\n"},
        config=_FLEET,
    ),
}
"""The scenes by page; a page without a scene needs only nproxy."""


@contextmanager
def scripted(kinds: Mapping[str, Kind]) -> Iterator[Mapping[str, str]]:
    """Run scripted servers in a thread of their own; gives their addresses by the page's addresses."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = AsyncExitStack()

    async def start() -> dict[str, str]:
        found = {}
        for address, kind in kinds.items():
            server = FakeUpstream(kind.behaviour, models=list(kind.models))
            await stack.enter_async_context(server)
            found[address] = f"127.0.0.1:{server.port}"
        return found

    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

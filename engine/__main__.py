"""`python -m engine MODEL`: the server process. It loads the tokenizer, starts the core, and serves.

Exit codes: 0 after SIGTERM, SIGINT or the end of standard input; 1 when the core failed; 2 for wrong use
or a model that cannot be served.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.channel import CoreClient
from engine.config import EngineConfig
from engine.errors import ConfigError, CoreFailed, ModelError
from engine.server.http import listening
from engine.server.metrics import Metrics
from engine.server.pooling import Pooling, read_pooling
from engine.server.router import Router
from engine.server.serving import STALL_SECONDS, Serving, unavailable
from engine.text.parsers.families import AUTO, NONE, REASONING_FAMILIES, TOOL_FAMILIES
from engine.text.tokenizer import Tokenizer, load_tokenizer

_DRAIN_SECONDS = 8.0  # the supervisor waits ten before it kills
_FAREWELL_SECONDS = 2.0  # for requests to write their error event

log = logging.getLogger("engine")


@dataclass(frozen=True, slots=True)
class Options:
    """How the server is reached and when it ends; the rest is the EngineConfig."""

    uds: Path | None
    host: str
    port: int
    exit_with_stdin: bool
    stall_seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to end; returns the exit code."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=arguments.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would take cores from the model
    options = Options(arguments.uds, arguments.host, arguments.port, arguments.exit_with_stdin, arguments.stall_seconds)
    try:
        config = _config(arguments)
        tokenizer = load_tokenizer(Path(config.model), config.tool_parser, config.reasoning_parser)
        pooling = read_pooling(config)
    except (ConfigError, ModelError) as error:
        print(f"engine: {error}", file=sys.stderr)  # noqa: T201 (the one line of a wrong use)
        return 2
    gc.collect()
    gc.freeze()  # the vocabulary lives as long as the process: no later collection need walk it
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:  # Windows has none
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_serve(config, options, tokenizer, pooling))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine", description="Serve one model on OpenAI's wire.")
    parser.add_argument("model", metavar="MODEL", help="a Hugging Face folder or a .gguf file")
    parser.add_argument("--uds", type=Path, metavar="PATH", help="listen on this Unix socket instead of host and port")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001, help="0 takes a free one")
    parser.add_argument("--served-model-name", metavar="ID", help="the id on the wire (default: the file's name)")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    parser.add_argument("--max-model-len", type=int, metavar="N", help="longest prompt plus answer, in tokens")
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens in a KV block")
    pool = parser.add_mutually_exclusive_group()
    pool.add_argument("--num-blocks", type=int, metavar="N", help="KV blocks in the pool")
    pool.add_argument(
        "--kv-fraction", type=float, metavar="F", help="part of the memory for KV, instead of --num-blocks"
    )
    parser.add_argument("--max-sequences", type=int, metavar="N", help="sequences at once, and the widest n")
    parser.add_argument("--max-batch-tokens", type=int, metavar="N", help="tokens that one step may run")
    parser.add_argument(
        "--max-queue", type=int, metavar="N", help="sequences that may wait while --max-sequences run; then 429"
    )
    parser.add_argument(
        "--no-prefix-cache",
        dest="prefix_cache",
        action="store_false",
        help="keep nothing of prompts and answers that are over, for requests that begin alike",
    )
    parser.add_argument(
        "--tool-parser",
        choices=(AUTO, NONE, *TOOL_FAMILIES),
        default=AUTO,
        help="how the model writes tool calls (default: what its chat template shows)",
    )
    parser.add_argument(
        "--reasoning-parser",
        choices=(AUTO, NONE, *REASONING_FAMILIES),
        default=AUTO,
        help="how the model writes reasoning (default: what its chat template shows)",
    )
    parser.add_argument(
        "--pooling", choices=("mean", "last"), help="how hidden states become embeddings, where the model does not say"
    )
    parser.add_argument("--max-logprobs", type=int, metavar="N", help="most of the likeliest tokens told with each")
    parser.add_argument(
        "--lora",
        type=_adapter,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="serve a LoRA adapter under a name of its own; may be given several times",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="base of the seeds of requests without one")
    parser.add_argument("--exit-with-stdin", action="store_true", help="end when standard input does")
    parser.add_argument(
        "--stall-seconds",
        type=_seconds,
        default=STALL_SECONDS,
        metavar="S",
        help="without a step for so long, though there is work, /health answers 503 (default: %(default)g)",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return seconds


def _adapter(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"must be NAME=PATH, not {text}")
    return name, path


def _config(arguments: argparse.Namespace) -> EngineConfig:
    """The settings; raises ConfigError for wrong ones and ModelError where the path holds no model."""
    model = Path(arguments.model)
    if not model.exists():
        raise ModelError(f"there is no model at {model}")
    if model.is_file() and model.suffix != ".gguf":
        raise ModelError(f"{model} is neither a folder nor a .gguf file")
    given = {
        name: getattr(arguments, name)
        for name in ("max_sequences", "max_batch_tokens", "max_queue", "max_logprobs")
        if getattr(arguments, name) is not None
    }
    return EngineConfig(
        model=str(model),
        dtype=arguments.dtype,
        served_model_name=arguments.served_model_name,
        block_size=arguments.block_size,
        num_blocks=arguments.num_blocks,
        kv_fraction=arguments.kv_fraction,
        max_model_len=arguments.max_model_len,
        seed=arguments.seed,
        prefix_cache=arguments.prefix_cache,
        pooling=arguments.pooling,
        tool_parser=arguments.tool_parser,
        reasoning_parser=arguments.reasoning_parser,
        adapters=tuple(arguments.lora),
        **given,
    )


async def _serve(config: EngineConfig, options: Options, tokenizer: Tokenizer, pooling: Pooling | None) -> int:
    name = config.served_model_name or _own_name(config.model)
    serving = Serving(config, name, tokenizer, options.stall_seconds, pooling)
    loop = asyncio.get_running_loop()
    departure = _Departure(serving)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, departure.signalled)
    if options.exit_with_stdin:
        threading.Thread(target=_watch_stdin, args=(loop, departure.at_once), daemon=True).start()
    try:
        async with listening(serving, uds=options.uds, host=options.host, port=options.port) as address:
            log.info("listening on %s", address)
            return await _until_told(config, serving, departure)
    except OSError as error:
        log.error("cannot listen: %s", error)  # noqa: TRY400 (an address that is taken needs no traceback)
        return 2
    finally:
        serving.close()


async def _until_told(config: EngineConfig, serving: Serving, departure: _Departure) -> int:
    code = 0
    try:
        async with asyncio.TaskGroup() as group:
            core = group.create_task(_run_core(config, serving))
            await departure.begun.wait()
            await serving.idle(_DRAIN_SECONDS)
            departure.at_once()  # whoever is not done by now gets an error event
            await serving.idle(_FAREWELL_SECONDS)
            core.cancel()
    except* CoreFailed as failures:
        serving.core_is_gone()
        for failure in failures.exceptions:
            log.error("%s", failure)  # noqa: TRY400 (the core's own log has the traceback)
        await serving.idle(_FAREWELL_SECONDS)
        code = 1
    return code


async def _run_core(config: EngineConfig, serving: Serving) -> None:
    """Load the model and hand out steps until cancelled; raises CoreFailed."""
    began = asyncio.get_running_loop().time()
    core = await CoreClient.start(config, tokenizer=serving.tokenizer.backend.to_str())
    try:
        metrics = Metrics(core.ready)
        router = Router(core, metrics)
        serving.core_is_ready(router, metrics)
        seconds = asyncio.get_running_loop().time() - began
        log.info("%s is ready after %.1f s: %s", serving.model, seconds, core.ready)
        await router.run()
    finally:
        await core.close()


class _Departure:
    """The way out: told once, requests may end; told again, or with nobody left to answer, they end now."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.begun = asyncio.Event()

    def signalled(self) -> None:
        """SIGTERM or SIGINT has come."""
        if self.begun.is_set():
            self.at_once()
        self._serving.draining = True
        self.begun.set()

    def at_once(self) -> None:
        """End what still runs with an error event."""
        self._serving.draining = True
        if self._serving.ready:
            self._serving.router.end(unavailable("The engine is shutting down."))
        self.begun.set()


def _watch_stdin(loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
    """Read standard input to its end, in a thread: a pipe, a file and a terminal all work so."""
    # os.read and not sys.stdin: a buffered read that still waits at exit would abort the interpreter.
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
        loop.call_soon_threadsafe(ended)


def _own_name(model: str) -> str:
    """The id of a model that was given none: its folder's name, or its file's without the ending."""
    path = Path(model).resolve()
    return path.name if path.is_dir() else path.stem


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)  # sys.exit would wait for a thread in which a chat template never ends

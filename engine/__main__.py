"""`python -m engine MODEL`: the server process. It starts the core process, and serves what that computes.

Exit codes: 0 after SIGTERM, SIGINT or the end of standard input; 1 if the core failed; 2 for wrong options, a model
that cannot be served, settings that do not fit the model or the machine, or an address that cannot be listened on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from engine import logs
from engine.channel import CoreClient
from engine.config import EngineConfig
from engine.errors import ConfigError, ModelError
from engine.gc_freeze import gc_frozen
from engine.options import Options, engine_config, parse_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal ends it; return the exit code."""
    options, given = parse_arguments(argv)
    logs.configure(options.log_level.upper(), "%(asctime)s %(name)s %(levelname)s %(message)s")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would take cores away from the model
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:  # Windows has none
        factory = None
    try:
        config = engine_config(given)
        name = _name(config)
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(_start(config, name, options))
    except (ConfigError, ModelError) as error:
        print(f"engine: {error}", file=sys.stderr)  # noqa: T201 (the one line of a wrong use)
        return 2
    except KeyboardInterrupt:  # it came before signals were handled
        return 0


async def _start(config: EngineConfig, name: str, options: Options) -> int:
    """Serve until a signal ends it; return the exit code. Raises ConfigError or ModelError.

    While this process reads its modules and the tokenizer, the core process reads torch and the model.
    """
    core = await CoreClient.launch(config)
    try:
        with gc_frozen():
            from engine.server.process import serve, serving_of

            serving = serving_of(config, name, options)
        return await serve(core, serving, options)
    finally:
        await core.close()


def _name(config: EngineConfig) -> str:
    """Return the model's name for clients; raise ConfigError if an adapter has that name."""
    name = config.served_model_name or _own_name(config.model)
    if name in dict(config.adapters):
        raise ConfigError(f"every adapter needs a unique name: '{name}' is the model's")
    return name


def _own_name(model: str) -> str:
    """Return the id of a model without a given one: its folder's name, or its file's name without the suffix."""
    path = Path(model).resolve()
    return path.name if path.is_dir() else path.stem


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)  # sys.exit would wait for a thread in which a chat template runs forever

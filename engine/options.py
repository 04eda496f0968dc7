"""The command line of `python -m engine`: how the server is reached, and the engine's settings."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

from engine.config import Device, Dtype, EngineConfig, Kernels, Pooling, Quantization
from engine.errors import ModelError
from engine.model_files import naming
from engine.text.parsers.families import AUTO, NONE, REASONING_FAMILIES, TOOL_FAMILIES

STALL_SECONDS = 60.0
"""The longest time without a step before the core counts as hung, unless the operator sets another."""

_DEFAULT = {field.name: field.default for field in fields(EngineConfig)}


@dataclass(frozen=True, slots=True)
class Registration:
    """Where to register, under which URL, and with which token.

    endpoint: `http://gateway:9000/admin/upstreams/NAME/replicas`. advertise: the base URL that the gateway is to call.
    """

    endpoint: str
    advertise: str
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Options:
    """How the server is reached, where it is registered, and when it ends; everything else is in EngineConfig."""

    uds: Path | None
    host: str
    port: int
    exit_with_stdin: bool
    stall_seconds: float
    register: str | None
    advertise: str | None
    register_token: str | None = field(repr=False)
    log_level: str

    @property
    def registration(self) -> Registration | None:
        """Where the server is to register itself; None if it is not."""
        if self.register is None or self.advertise is None:
            return None
        return Registration(self.register, self.advertise, self.register_token)


def parse_arguments(argv: Sequence[str] | None) -> tuple[Options, argparse.Namespace]:
    """Read the command line; wrong options end the process, as argparse does.

    The engine's settings are checked later.
    """
    parser = argument_parser()
    given = parser.parse_args(argv)
    if (given.register is None) != (given.advertise is None) or (given.register_token and not given.register):
        parser.error("--register and --advertise must be used together, and --register-token only with them")
    return Options(**{field.name: getattr(given, field.name) for field in fields(Options)}), given


def engine_config(given: argparse.Namespace) -> EngineConfig:
    """Return the engine's settings; those that were not given keep their defaults.

    Raises ConfigError for wrong ones and ModelError if the path holds no model.
    """
    model = Path(given.model)
    with naming(model):
        if not model.exists():
            raise ModelError(f"no such file or folder: {model}")
    if model.is_file() and model.suffix != ".gguf":
        raise ModelError(f"{model} is neither a folder nor a .gguf file")
    settings = {field.name: getattr(given, field.name) for field in fields(EngineConfig) if field.name in given}
    return EngineConfig(**{**settings, "adapters": tuple(settings.get("adapters", ()))})


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of all options; a setting of the engine that is not given is absent from its result."""
    parser = argparse.ArgumentParser(
        prog="python -m engine",
        usage="%(prog)s MODEL [options]",
        description="Serve one model over the OpenAI API.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("model", metavar="MODEL", help="a Hugging Face folder or a .gguf file")
    _server(parser)
    _fleet(parser)
    _model(parser)
    _device(parser)
    _form(parser)
    _memory(parser)
    _limits(parser)
    return parser


def _server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("server").add_argument
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="listen on this address (%(default)s)")
    add("--port", type=_port, default=8001, metavar="N", help="listen on this port; 0 picks a free port (%(default)s)")
    add("--uds", type=Path, default=None, metavar="PATH", help="listen on this Unix socket instead of host and port")
    add(
        "--stall-seconds",
        type=_seconds,
        default=STALL_SECONDS,
        metavar="S",
        help="/health answers 503 if the engine has work and ran no step for S seconds (%(default)g)",
    )
    add("--exit-with-stdin", action="store_true", default=False, help="exit when standard input is closed")
    add(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="lowest level that is logged (%(default)s)",
    )


def _fleet(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("registration with a gateway").add_argument
    add(
        "--register",
        type=_url,
        default=None,
        metavar="URL",
        help="register this server with a gateway: http://GATEWAY:9000/admin/upstreams/NAME/replicas",
    )
    add(
        "--advertise",
        type=_url,
        default=None,
        metavar="URL",
        help="URL at which the gateway reaches this server: http://HOST:8001/v1",
    )
    add(
        "--register-token",
        type=_secret,
        default=None,
        metavar="WHERE",
        help="token of the gateway's admin port: '${NAME}' for an environment variable (in quotes), or file:PATH",
    )


def _model(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("model").add_argument
    add("--served-model-name", metavar="ID", help="model id in the API (the name of its file or folder)")
    add(
        "--lora",
        dest="adapters",
        type=_adapter,
        action="append",
        metavar="NAME=PATH",
        help="serve this LoRA adapter as a model of its own; repeatable",
    )
    add(
        "--dtype",
        choices=get_args(Dtype),
        help="data type in which the engine computes (auto)",
    )
    add(
        "--quantization",
        choices=get_args(Quantization),
        help="quantize the weights and matrix products of the layers, on a CPU (as --dtype says)",
    )
    add(
        "--max-model-len",
        type=int,
        metavar="N",
        help="maximum length of prompt plus answer, in tokens (the model's context length)",
    )
    add("--seed", type=int, metavar="N", help="base seed for requests without a seed (random at each start)")


def _device(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("device").add_argument
    add("--device", choices=get_args(Device), help="device to run on (auto: a CUDA device if there is one)")
    add(
        "--kernels",
        choices=get_args(Kernels),
        help="kernels to use (auto: Triton kernels on a CUDA device, kernels in C on a CPU with a compiler)",
    )
    add(
        "--no-cuda-graphs",
        dest="cuda_graphs",
        action="store_false",
        help="do not use CUDA graphs: launch every kernel of every step separately",
    )
    add(
        "--deterministic",
        action="store_true",
        help="give bit-identical answers whatever else is in the batch (without kernels in C, much slower)",
    )


def _form(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("output").add_argument
    add(
        "--tool-parser",
        choices=(AUTO, NONE, *TOOL_FAMILIES),
        help="how the model writes tool calls (auto: what its chat template shows)",
    )
    add(
        "--reasoning-parser",
        choices=(AUTO, NONE, *REASONING_FAMILIES),
        help="how the model writes reasoning (auto: what its chat template shows)",
    )
    add(
        "--pooling",
        choices=get_args(Pooling),
        help="how hidden states become embeddings, if the model's folder does not say",
    )


def _memory(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("memory and batching")
    add, pool = group.add_argument, group.add_mutually_exclusive_group()
    pool.add_argument(
        "--num-blocks",
        type=int,
        metavar="N",
        help="number of KV blocks in the pool (as many as --kv-fraction of the memory holds)",
    )
    pool.add_argument(
        "--kv-fraction", type=float, metavar="F", help="fraction of the memory for KV blocks, between 0 and 1"
    )
    add("--block-size", type=int, metavar="N", help=f"tokens per KV block ({_DEFAULT['block_size']})")
    add(
        "--no-prefix-cache",
        dest="prefix_cache",
        action="store_false",
        help="do not reuse the KV blocks of finished requests for requests with the same prefix",
    )
    add(
        "--max-sequences",
        type=int,
        metavar="N",
        help=f"sequences that run at once ({_DEFAULT['max_sequences']}); n is at most this, over HTTP at most 128",
    )
    add(
        "--max-batch-tokens",
        type=int,
        metavar="N",
        help="maximum tokens per step (1024; on a CUDA device 8192, if its memory allows it)",
    )


def _limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits").add_argument
    add(
        "--max-queue",
        type=int,
        metavar="N",
        help=f"sequences that may wait while --max-sequences run; further requests get 429 ({_DEFAULT['max_queue']})",
    )
    add(
        "--max-logprobs",
        type=int,
        metavar="N",
        help=f"maximum top log probabilities per token that a request may ask for ({_DEFAULT['max_logprobs']})",
    )
    add(
        "--max-responses",
        type=int,
        metavar="N",
        help=f"maximum number of responses stored for requests that continue them ({_DEFAULT['max_responses']})",
    )
    add(
        "--max-response-bytes",
        type=int,
        metavar="N",
        help=f"maximum size of all stored responses together, in bytes ({_DEFAULT['max_response_bytes']})",
    )


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535, not {text}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text}")
    return seconds


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        good = False
    if not good:
        raise argparse.ArgumentTypeError(
            "must be a URL that begins with http:// or https:// and contains no credentials"
        )
    return text


def _secret(text: str) -> str:
    """Return a secret from the place that the option names: on the command line itself every user of the machine could
    see it.
    """
    if (name := re.fullmatch(r"\$\{(\w+)\}", text)) is not None:
        found = os.environ.get(name[1], "")
    elif text.startswith("file:"):
        try:
            found = Path(text.removeprefix("file:")).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, RuntimeError, UnicodeError):  # RuntimeError: ~ with the name of no user
            found = ""
    else:
        raise argparse.ArgumentTypeError("must be '${NAME}' for an environment variable (in quotes), or file:PATH")
    if not (found and found.isascii() and found.isprintable()):
        raise argparse.ArgumentTypeError(f"there is no valid token in {text}")
    return found


def _adapter(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"must be NAME=PATH, not {text}")
    return name, path

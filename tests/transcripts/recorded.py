"""Reads the recorded answers of real servers that lie beside this file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Transcript:
    """One exchange. path and request are empty where only the response was recorded; header names are lower case."""

    path: str
    request: bytes
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")


def load(server: str, name: str) -> Transcript:
    """Read one transcript, such as `load("vllm", "n2_stream")`."""
    text = (_HERE / server / f"{name}.txt").read_bytes()
    path, request = "", b""
    if text.startswith(b"POST "):
        head, text = text.split(b"\n\n", 1)
        line, request = head.split(b"\n", 1)
        path = line.split()[1].decode()
    head, body = re.split(rb"\r?\n\r?\n", text, maxsplit=1)
    status, *lines = head.decode().splitlines()
    headers = dict(line.split(":", 1) for line in lines)
    return Transcript(
        path=path,
        request=request,
        status=int(status.split()[1]),
        headers={name.lower(): value.strip() for name, value in headers.items()},
        body=body,
    )


def names(server: str) -> list[str]:
    """All transcripts of one server."""
    return sorted(file.stem for file in (_HERE / server).glob("*.txt"))


SERVERS = ("vllm", "llamacpp", "transformers-serve", "mlx-lm", "ollama")

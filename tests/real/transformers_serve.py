"""`transformers serve`, an upstream that answers one choice whatever `n` says: installing, its model, starting it.

`python -m tests.real.transformers_serve` installs it ahead of a test run; tests do so themselves where it is missing.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real.processes import ROOT, Server, free_port, server

REQUIREMENTS = ROOT / "requirements" / "transformers-serve.txt"
SITE = ROOT / ".venvs" / "transformers-serve"
MODELS = ROOT / "build" / "real"


def install() -> Path:
    """Bring the pinned packages into their own folder, once per state of the pins; returns the folder."""
    stamp = SITE / "requirements.sha256"
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(SITE)]
        subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
        stamp.write_text(digest)
    return SITE


def hf_folder(gguf: Path) -> Path:
    """The Hugging Face folder of this GGUF, converted once (about 15 s) and kept."""
    folder = MODELS / f"{gguf.stem}-{gguf.stat().st_size}"
    if not folder.exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        script = Path(__file__).with_name("hf_folder.py")
        subprocess.run([sys.executable, "-P", str(script), str(gguf), str(folder)], check=True, env=_environment())
    return folder


@contextmanager
def transformers_serve(folder: Path, *, log: Path) -> Iterator[Server]:
    """The server with the model of `folder` loaded; the model's id on the wire is the folder's path."""
    port = free_port()
    argv = [sys.executable, "-P", "-m", "transformers.cli.transformers", "serve", str(folder)]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with server(argv, port=port, log=log, ready="/health", env=_environment()) as running:
        yield running


def _environment() -> dict[str, str]:
    # waiting threads sleep: on a few cores, shared with gateway and tests, spinning makes a step many times slower
    threads = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
    return {**os.environ, **threads, "PYTHONPATH": str(install()), "HF_HUB_OFFLINE": "1"}


if __name__ == "__main__":
    print(install())

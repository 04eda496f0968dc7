"""`transformers serve`, an upstream that answers with one choice regardless of `n`: its model, and its start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from tests.ports import free_port
from tests.real.processes import ROOT, Server, server
from tests.system.packages import installed

MODELS = ROOT / "build" / "real"


def hf_folder(gguf: Path) -> Path:
    """Return the Hugging Face folder of this GGUF, converted once (about 15 s) and kept."""
    folder = MODELS / f"{gguf.stem}-{gguf.stat().st_size}"
    MODELS.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):  # several test processes may need it at once
        if not folder.exists():
            script = Path(__file__).with_name("hf_folder.py")
            subprocess.run([sys.executable, "-P", str(script), str(gguf), str(folder)], check=True, env=_environment())
    return folder


@contextmanager
def transformers_serve(folder: Path, *, log: Path, dtype: str = "auto") -> Iterator[Server]:
    """Run the server with the model of `folder`; the model's id in the API is the folder's path.

    dtype: the number type that it computes in; `auto` is that of the weights.
    """
    port = free_port()
    argv = [sys.executable, "-P", "-m", "transformers.cli.transformers", "serve", str(folder)]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", dtype]
    with server(argv, port=port, log=log, ready="/health", env=_environment()) as running:
        yield running


def _environment() -> dict[str, str]:
    # waiting threads sleep: on a few cores shared with gateway and tests, spinning makes a step many times slower
    threads = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
    return {**os.environ, **threads, "PYTHONPATH": str(installed("transformers-serve")), "HF_HUB_OFFLINE": "1"}

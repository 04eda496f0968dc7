"""Brings the gateways onto this machine, each into a folder of its own, at a version that is pinned."""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path

from tests.compatibility.installing import Unavailable
from tests.real.processes import ROOT

VENVS = ROOT / ".venvs"


def debian(package: str, file: str) -> Path:
    """A program of a Debian package, unpacked with the libraries that this system lacks."""
    try:
        subprocess.run(["sh", str(ROOT / "tests" / "system" / "debian.sh"), package, file, "libraries"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"Debian's package {package} cannot be had: {error}") from error
    return VENVS / package / file


def libraries(package: str) -> str:
    """Where the libraries lie that were unpacked with a package, for LD_LIBRARY_PATH."""
    return ":".join(str(folder) for folder in sorted((VENVS / package / "usr" / "lib").glob("*-linux-gnu*")))


def ours() -> str:
    """nproxy's version here, with its commit."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    return f"{importlib.metadata.version('nproxy')} ({commit.stdout.strip() or 'unknown'})"

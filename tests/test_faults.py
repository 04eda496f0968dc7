"""docs/faults.md names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "faults.md"


def rows() -> list[tuple[str, list[tuple[str, str]]]]:
    """Each fault and its tests, as (file, function)."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "| tests |" not in line]
    return [(line.split("|")[1].strip(), re.findall(r"`([^`:]+\.py)::(\w+)`", line)) for line in lines]


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_fault_names_a_test_that_exists() -> None:
    missing = [
        f"{fault}: {file}::{name}"
        for fault, tests in rows()
        for file, name in tests or [("no", "test")]
        if not (ROOT / file).is_file() or name not in functions_of(file)
    ]
    assert not missing


def test_all_lists_are_there() -> None:
    assert re.findall(r"^## (\d)\.", PAGE.read_text(), re.MULTILINE) == list("12345678")
    assert len(rows()) > 60

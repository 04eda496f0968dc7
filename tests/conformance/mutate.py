"""Switches rules off, one at a time, in a copy of the product, and expects the tests of the rule's row to fail.

    python -m tests.conformance.mutate [ROW]...

Prints a line for each mutation. Exits with 1 if one survives, cannot be applied any more, or breaks more than its rule.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from tests.conformance.mutations import MUTATIONS, Mutation
from tests.conformance.table import ROOT, data, rows_of

JOBS = min(4, os.cpu_count() or 1)
_KILLED, _PASSED = 1, 0  # pytest's exit codes for failed and passed tests; other codes are not about the rule


def collected() -> list[str]:
    """The ids of all tests of rows that use a scripted server; they are fast, and show what it should have done."""
    elsewhere = {file for _, file in data().elsewhere.values() if not file.startswith("tests/engine/")}
    places = {"tests/conformance", *(file for file in elsewhere if not file.startswith("tests/conformance/"))}
    without = "--ignore=tests/conformance/with_engine"
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", without, *sorted(places)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line for line in listed.stdout.splitlines() if "::" in line]


def tests_of(row: str, ids: Sequence[str]) -> list[str]:
    """The tests that show a row. Of a test that is parametrized by rows, only the cases of this row."""
    named = [id for id in ids if row in rows_of(id.partition("::")[2].partition("[")[0])]
    labelled = {id.partition("[")[0] for id in named if f"{row}-" in id.partition("[")[2]}
    return [id for id in named if id.partition("[")[0] not in labelled or f"{row}-" in id.partition("[")[2]]


class Copies:
    """Copies of the product and its tests, one for each job."""

    def __init__(self, folder: Path, count: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for number in range(count):
            copy = folder / str(number)
            for name in ("nproxy", "tests"):
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(ROOT / "pyproject.toml", copy)
            self._free.put(copy)

    @contextmanager
    def borrow(self) -> Iterator[Path]:
        copy = self._free.get()
        try:
            yield copy
        finally:
            self._free.put(copy)


def outcome(mutation: Mutation, tests: Sequence[str], copies: Copies) -> str:
    """The result of one mutation: "killed", or what is wrong."""
    if not tests:
        return "the row has no test"
    with copies.borrow() as copy:
        file = copy / mutation.file
        text = file.read_text()
        if text.count(mutation.old) != 1:
            return f"its text stands {text.count(mutation.old)} times in {mutation.file}"
        file.write_text(text.replace(mutation.old, mutation.new))
        try:
            ran = subprocess.run(
                [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=20", *tests],
                cwd=copy, capture_output=True, text=True, timeout=600, check=False,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(copy)},
            )  # fmt: skip
        finally:
            file.write_text(text)
    if ran.returncode == _KILLED:
        return "killed"
    return "SURVIVED" if ran.returncode == _PASSED else f"pytest ended with {ran.returncode}:\n{ran.stdout[-2000:]}"


def main(rows: Sequence[str]) -> int:
    """Run the mutations of these rows, or all of them."""
    chosen = [mutation for mutation in MUTATIONS if not rows or mutation.row in rows]
    ids = collected()
    started = time.monotonic()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder, ThreadPoolExecutor(JOBS) as pool:
        copies = Copies(Path(folder), JOBS)
        results = pool.map(lambda mutation: outcome(mutation, tests_of(mutation.row, ids), copies), chosen)
        for mutation, result in zip(chosen, results, strict=True):
            bad += result != "killed"
            print(f"{mutation.row:4} {result:10} {mutation.file}: {mutation.old.strip().splitlines()[0]}", flush=True)
    rows_hit = len({mutation.row for mutation in chosen})
    print(f"{len(chosen)} mutations of {rows_hit} rows in {time.monotonic() - started:.0f} s; {bad} not killed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Compile every kernel of the engine for a GPU, on a machine without one, and print the resources of each.

    python bench/gpu/compile.py [--capability 90] [--only TEXT ...] [--record FILE]

Prints one line per kernel and set of constants: registers per thread, bytes spilled to local memory (stored, loaded),
shared memory per program, and the instructions of its matrix products. --capability: the compute capability, 90 for a
Hopper GPU, 89 for a graphics card. --only: cases or kernels whose names contain one of these texts. --record:
bench/results/gpu/compile.json, which has one entry per version of Triton and capability.

PYTHONPATH can select another Triton: `make kernels` also compiles with the oldest version that the engine supports.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import pkgutil
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import engine.kernels
from bench.gpu.launches import Case, cases
from bench.gpu.table import columns
from engine.kernels import launch as tables

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_WIDTHS = {"": 4, ".S16": 2, ".U16": 2, ".S8": 1, ".U8": 1, ".64": 8, ".128": 16}  # of loads and stores, in bytes


@dataclass(slots=True)
class Launch:
    """A kernel with its constants, and the cases that launch it. data: what Triton needs to compile it again."""

    kernel: JITFunction[Any]
    data: str
    cases: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Module and function of the kernel."""
        return _name(self.kernel)


@dataclass(frozen=True, slots=True)
class Compiled:
    """The resources of a compiled kernel."""

    kernel: str
    cases: tuple[str, ...]
    warps: int
    registers: int
    """Registers per thread."""
    stored: int
    """Bytes stored to local memory by the instructions of one thread, each instruction counted once."""
    loaded: int
    """Bytes loaded from local memory, counted in the same way."""
    local: int
    """Bytes of stack and local memory per thread."""
    shared: int
    """Bytes of shared memory per program."""
    products: str
    """The instructions of its matrix products: wgmma, mma.sync, or both."""


class _Absent:
    """A Triton driver for a GPU that is not present, of the capability that the launch tables take."""

    def get_current_target(self) -> GPUTarget:
        major, minor = tables.compiled_for
        return GPUTarget("cuda", 10 * major + minor, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def launches(wanted: Iterable[Case]) -> list[Launch]:
    """Return the launches of the cases, each kernel once per set of constants; nothing is compiled."""
    found: dict[tuple[str, str], Launch] = {}
    case = ""

    def note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        launch = Launch(fn.jit_function, compile["specialization_data"])
        noted = found.setdefault((launch.name, launch.data), launch).cases
        if case not in noted:
            noted.append(case)
        return True  # skip the compilation

    driver.set_active(_Absent())
    triton.knobs.runtime.jit_cache_hook = note
    try:
        for one in wanted:
            case = one.name
            one.launch()
    finally:
        triton.knobs.runtime.jit_cache_hook = None
    return list(found.values())


def forgotten(launched: Iterable[Launch]) -> list[str]:
    """Return the engine's kernels that no launch uses: @triton.jit functions that no other one calls."""
    found: dict[str, JITFunction[Any]] = {}
    for module in pkgutil.iter_modules(engine.kernels.__path__, "engine.kernels."):
        values = vars(importlib.import_module(module.name)).values()
        found |= {_name(value): value for value in values if isinstance(value, JITFunction)}
    called = {_name(other) for kernel in found.values() for other in _called(kernel)}
    return sorted(set(found) - called - {launch.name for launch in launched})


def _name(kernel: JITFunction[Any]) -> str:
    return f"{kernel.module.removeprefix('engine.kernels.')}.{kernel.__name__}"


def _called(kernel: JITFunction[Any]) -> Iterator[JITFunction[Any]]:
    names = {node.id for node in ast.walk(ast.parse(kernel.src)) if isinstance(node, ast.Name)}
    return (value for name, value in kernel.fn.__globals__.items() if name in names and isinstance(value, JITFunction))


def compiled(launch: Launch) -> Compiled:
    """Compile a kernel and inspect its machine code. Raises Triton's error if it cannot be compiled."""
    binary = launch.kernel.preload(launch.data)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", _cuobjdump("-res-usage", file.name))}
        local = usage["STACK"] + usage["LOCAL"]
        moved = _local_bytes(_cuobjdump("-sass", file.name)) if local else {"ST": 0, "LD": 0}
    products = [name for name in ("wgmma", "mma.sync") if f"\t{name}" in binary.asm["ptx"]]
    return Compiled(
        kernel=launch.name,
        cases=tuple(launch.cases),
        warps=binary.metadata.num_warps,
        registers=usage["REG"],
        stored=moved["ST"],
        loaded=moved["LD"],
        local=local,
        shared=binary.metadata.shared,
        products=" ".join(products),
    )


def _cuobjdump(what: str, file: str) -> str:
    return subprocess.run([_TOOLS / "cuobjdump", what, file], capture_output=True, text=True, check=True).stdout


def _local_bytes(sass: str) -> dict[str, int]:
    """Return the bytes that one thread's instructions store to local memory (ST) and load from it (LD)."""
    moved = {"ST": 0, "LD": 0}
    for way, width in re.findall(r"\b(ST|LD)L(?:\.LU)?(\.[US]?\d+)?\b", sass):
        moved[way] += _WIDTHS[width]
    return moved


def table(rows: Sequence[Compiled]) -> str:
    """Return the rows as a text table."""
    figures = ("warps", "registers", "stored", "loaded", "shared")
    told = [
        [row.kernel, *[str(getattr(row, name)) for name in figures], row.products, "; ".join(row.cases)] for row in rows
    ]
    return columns([["kernel", *figures, "products", "cases"], *told])


def record(file: Path, rows: Sequence[Compiled]) -> None:
    """Write the rows to `file` under this Triton's version and the capability; other entries stay."""
    told = json.loads(file.read_text()) if file.exists() else {}
    target = "sm_{}{}".format(*tables.compiled_for)
    told[f"{triton.__version__}, {target}"] = {
        "conditions": {"python": platform.python_version(), "torch": torch.__version__, "target": target},
        "kernels": [asdict(row) for row in rows],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Compile the kernels and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT")
    parser.add_argument("--record", type=Path, metavar="FILE")
    options = parser.parse_args()
    tables.compiled_for = divmod(options.capability, 10)
    found = launches(cases())
    if missing := forgotten(found):
        sys.exit(f"no case in bench/gpu/launches.py launches {', '.join(missing)}")
    wanted = [one for one in found if any(text in name for text in options.only for name in (one.name, *one.cases))]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        rows = sorted(threads.map(compiled, wanted), key=lambda row: row.kernel)
    print(f"Triton {triton.__version__}, sm_{options.capability}\n\n{table(rows)}")
    if options.record:
        record(options.record, rows)


if __name__ == "__main__":
    main()

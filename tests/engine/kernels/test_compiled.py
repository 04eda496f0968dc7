"""Kernels compile for a Hopper GPU, and fit it; all of them do so in `make kernels`.

The compiler runs in processes of its own: here kernels are what the interpreter made of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.kernels import launch

ROOT = Path(__file__).parents[3]
SELECTED = ("Qwen3-0.6B", "head 64, group 7", "head 96, group 3", "head 256, group 8")
LARGE = "head 128, group 48"
ADD_PRODUCT = "add_product._add_product"
ATTENTION = ("attn_items._attn_items", "merge_parts._merge_parts", "prefill_attn._prefill_attn")

pytestmark = pytest.mark.timeout(600)  # seconds each on a quiet machine


def run(*argv: str, cache: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *argv], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What all kernels of a model take, and those of attention of other shapes."""
    folder = tmp_path_factory.mktemp("compiled")
    file = folder / "compile.json"
    run("bench/gpu/compile.py", "--only", *SELECTED, LARGE, "--record", str(file), cache=folder)
    [one] = json.loads(file.read_text()).values()
    found: list[dict[str, Any]] = one["kernels"]
    return found


def test_all_fit_a_multiprocessor(rows: list[dict[str, Any]]) -> None:
    assert {case for row in rows for case in row["cases"]} >= {*SELECTED, LARGE}
    assert all(0 < row["registers"] <= 255 for row in rows)
    assert all(row["registers"] * row["warps"] * 32 <= 65536 for row in rows)
    assert all(row["shared"] <= 227 * 1024 for row in rows)


def test_attention_keeps_everything_in_registers(rows: list[dict[str, Any]]) -> None:
    attention = [row for row in rows if row["kernel"] in ATTENTION]
    assert {row["kernel"] for row in attention} == set(ATTENTION)
    assert [row for row in attention if (row["stored"], row["loaded"], row["local"]) != (0, 0, 0)] == []


def test_attention_uses_the_tensor_cores(rows: list[dict[str, Any]]) -> None:
    """A narrow tile is too low for Hopper's own products of 64 rows, where groups are not as large as that."""
    items, prefill = "attn_items._attn_items", "prefill_attn._prefill_attn"
    for large, products in ((False, {"wgmma", "mma.sync"}), (True, {"wgmma"})):
        of = [row for row in rows if (LARGE in row["cases"]) == large and row["kernel"] != ADD_PRODUCT]
        used = {(row["kernel"], row["products"]) for row in of if row["products"]}
        assert used == {*[(items, one) for one in products], (prefill, "wgmma")}


def test_products_of_few_rows_use_the_tensor_cores_and_keep_everything_in_registers(rows: list[dict[str, Any]]) -> None:
    products = [row for row in rows if row["kernel"] == ADD_PRODUCT]
    assert {(row["products"], row["local"]) for row in products} == {("mma.sync", 0)}
    assert {case for row in products for case in row["cases"]} >= {f"Qwen3-0.6B, {n} rows" for n in ("few", 32)}


def test_programs_of_decode_attention_share_a_multiprocessor(rows: list[dict[str, Any]]) -> None:
    """Also where groups are so large that the narrow tile is as high as the wide one."""
    for case, group in (("Qwen3-0.6B", 2), (LARGE, 48)):
        tiles, many = launch.attn(128, group, 2, 2), launch.attn(128, group, 2, 128).wide
        own = [row for row in rows if row["kernel"] == ATTENTION[0] and case in row["cases"]]
        assert len(own) == 4  # wide, wider with many rows, narrow, narrow without wide
        for row in own:
            tile = tiles.narrow if row["products"] != "wgmma" else many if row["warps"] == 8 else tiles.wide
            assert tile is many or tile.per_core >= 2
            assert -(-row["registers"] // 8) * 8 * 32 * row["warps"] * tile.per_core <= 65536
            assert (row["shared"] + 1024) * tile.per_core <= 228 * 1024  # the system takes 1 KB for each program


def test_attention_fits_a_graphics_card(tmp_path: Path) -> None:
    """Its programs may have 99 KB of shared memory."""
    file = tmp_path / "compile.json"
    cases = ("head 128, group 7", "head 256, group 4")
    run("bench/gpu/compile.py", "--capability", "89", "--only", *cases, "--record", str(file), cache=tmp_path)
    [(_, one)] = json.loads(file.read_text()).items()
    rows = one["kernels"]
    assert one["conditions"]["target"] == "sm_89"
    assert {row["kernel"] for row in rows} >= set(ATTENTION)
    assert all(row["shared"] <= 99 * 1024 and row["local"] == 0 for row in rows)


LOOKING = """
import torch
import triton
import triton.language as tl

from bench.gpu import compile as tool

launched, *others = [tool.launches(tool.cases(tokens)) for tokens in (8, 1, 13)]
print(tool.forgotten(launched))
print(tool.forgotten([one for one in launched if "norms" not in one.name]))
for other in others:
    print(sorted({(one.name, one.data) for one in launched} ^ {(one.name, one.data) for one in other}))

@triton.jit
def _product(a, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(a + at)))

def case(registers):
    a, out = (torch.empty(128, 128, dtype=dtype, device="meta") for dtype in (torch.bfloat16, torch.float32))
    return tool.Case(str(registers), lambda: _product[(1,)](a, out, SIZE=128, maxnreg=registers))

for row in map(tool.compiled, tool.launches([case(255), case(96)])):
    print(row.stored > 0, row.loaded > 0, row.local > 0, row.registers, row.shared > 0)
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the tool says where it is asked other things; one process, because each takes seconds to begin."""
    folder = tmp_path_factory.mktemp("looking")
    (file := folder / "looking.py").write_text(LOOKING)
    return run(str(file), cache=folder).splitlines()


def test_no_kernel_is_forgotten_and_none_depends_on_how_much_a_step_holds(seen: list[str]) -> None:
    """What depends on it would be compiled while requests wait."""
    assert seen[:4] == ["[]", "['norms._rms_norm']", "[]", "[]"]


def test_what_spills_is_seen(seen: list[str]) -> None:
    roomy, tight = [line.split() for line in seen[4:]]
    assert roomy[:3] == ["False"] * 3
    assert tight == ["True", "True", "True", "96", "True"]

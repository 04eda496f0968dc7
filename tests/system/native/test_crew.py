"""Threads that share work: each unit is done once, whichever thread is late, with the same results for any number."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from psutil import Process

from engine.cpu_runner import CpuRunner
from engine.models.quantized import Int8Matrix
from engine.native import build
from engine.native.products import NativeProducts
from tests.engine.device.running import config, group, run, write

PROGRAM = Path(__file__).with_name("crew.c")
HEADERS = Path(build.__file__).parent / "c"
MANY = 7
TRAFFIC = [group(1, 30, 4, 4, 100), group(2, 9, 1, 5, 200)]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("sanitizer", [(), ("-fsanitize=thread",)], ids=["as it is", "watched for races"])
def test_each_unit_is_done_once(tmp_path: Path, sanitizer: tuple[str, ...]) -> None:
    cc = build.compiler()
    assert cc is not None
    flags = ["-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{HEADERS}", *sanitizer]
    subprocess.run([*cc, *flags, "-o", tmp_path / "crew", PROGRAM, "-pthread"], check=True)
    done = subprocess.run([tmp_path / "crew"], capture_output=True, text=True, timeout=120)
    if "unexpected memory mapping" in done.stderr:  # the sanitizer does not support this address randomization
        done = subprocess.run(["setarch", "-R", tmp_path / "crew"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 8, 77])
def test_more_threads_than_processors_give_the_same_products(dtype: torch.dtype, rows: int) -> None:
    chance = torch.Generator().manual_seed(rows)
    weight, x = (torch.randn(many, 576, generator=chance).to(dtype) for many in (1504, rows))
    products = NativeProducts(build.load_kernels(dtype), emulated=True)
    for product in products.linear(weight), products.int8(Int8Matrix.of(weight.float())):
        torch.set_num_threads(1)
        alone = product(x)
        torch.set_num_threads(MANY)
        assert all(torch.equal(product(x), alone) for _ in range(20))


@pytest.mark.parametrize("numbers", [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
def test_more_threads_than_processors_give_the_same_steps(tmp_path: Path, numbers: dict[str, str]) -> None:
    settings = config(write(tmp_path, hidden_size=64), **numbers)

    def told(threads: int) -> object:
        runner = CpuRunner.load(settings)
        torch.set_num_threads(threads)  # after loading, which sets it too
        return run(runner, settings, TRAFFIC)

    alone = told(1)
    assert all(told(MANY) == alone for _ in range(3))


def test_threads_that_end_leave_nothing_behind() -> None:
    """A thread needs half a MiB to turn a panel into floats: the third hundred of threads takes no more memory."""
    products = NativeProducts(build.load_kernels(torch.float32), emulated=True)
    product, x = products.linear(torch.randn(64, 8192).bfloat16()), torch.randn(32, 8192)
    grown = []
    for _ in range(3):
        before = Process().memory_info().rss
        for _ in range(100):
            caller = threading.Thread(target=product, args=(x,))
            caller.start()
            caller.join()
        grown.append(Process().memory_info().rss - before)
    assert grown[-1] < 10 << 20, grown

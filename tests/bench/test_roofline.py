"""What the roofline predicts, against cases counted by hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import roofline
from bench.gpu.cases import BY_KEY, FULL, LLAMA, QWEN3, ModelShape, Shape, peak_blocks
from bench.roofline import Machine, predict, prefill, private, shared, step, unaware

ROOT = Path(__file__).resolve().parents[2]
SMALL = Shape(heads=4, kv_heads=2, dim=8)  # 64 bytes a token
MODEL = ModelShape("small", "qwen3", 61, 32, 2, Shape(4, 2, 16), 48, tied=True)
# A byte a second, an operation a second: seconds are counts.
UNIT = Machine(bandwidth=1.0, matmul=2.0, cache_bandwidth=4.0, cache=1e9, launch=0.0, item=0.0, sampling=0.0)


def test_shapes_of_the_models() -> None:
    # 28 layers of q 2 x 1024 x 2048, kv 2 x 1024 x 1024 and 3 x 1024 x 3072, and the head of 151,936 x 1024
    assert QWEN3.weight_bytes == 2 * (28 * (4_194_304 + 2_097_152 + 9_437_184) + 155_582_464)
    assert QWEN3.token_bytes == 112 * 1024
    assert LLAMA.token_bytes == 128 * 1024
    assert LLAMA.weight_bytes == pytest.approx(15.0e9, rel=0.01)


def test_rows_that_read_their_own_past() -> None:
    estimate = private(UNIT, SMALL, rows=3, prefix=300, own=12)
    # 2 parts of 4 heads x (8 + 1) floats for each of 3 rows, written and read
    assert estimate.bytes == 3 * 312 * 64 + 2 * 3 * 4 * 2 * 9 * 4
    assert estimate.operations == 4 * 3 * 4 * 312 * 8  # two products of two operations for each number
    assert estimate.seconds == estimate.bytes
    assert estimate.floor(UNIT) == max(estimate.bytes, estimate.operations / 2)


def test_a_prefix_read_once() -> None:
    estimate = shared(UNIT, SMALL, rows=3, prefix=256, own=12)
    apart = 3 * 12 * 64 + 2 * 3 * 4 * 2 * 9 * 4
    assert estimate.bytes == 256 * 64 + apart
    assert estimate.operations == 4 * 3 * 4 * (256 + 12) * 8
    # The prefix is one product after the other at half the rate, if that takes longer than its bytes.
    assert estimate.seconds == max(256 * 64, 4 * 3 * 4 * 256 * 8 / 1.0) + apart
    slow = replace(UNIT, bandwidth=0.1)
    assert shared(slow, SMALL, 3, 256, 12).seconds == pytest.approx(10 * (256 * 64 + apart))


def test_long_prefixes_are_cut_into_longer_items() -> None:
    # 128 spans x 2 tiles of rows x 8 heads: 7.75 times the 264 programs, so items are 4 spans long
    assert roofline._shared_parts(Machine(), Shape(32, 8, 128), 32, 32768) == 32
    assert roofline._shared_parts(Machine(), Shape(32, 8, 128), 32, 2048) == 8


def test_shared_blocks_are_read_again_from_the_cache_if_they_fit() -> None:
    estimate = unaware(UNIT, SMALL, rows=3, prefix=256, own=12)
    assert estimate.bytes == (256 + 3 * 12) * 64 + 2 * 3 * 4 * 2 * 9 * 4
    assert estimate.seconds == estimate.bytes + 2 * 256 * 64 / 4
    small = replace(UNIT, cache=1000.0)
    assert unaware(small, SMALL, 3, 256, 12) == private(small, SMALL, 3, 256, 12)


def test_a_step_reads_the_weights_once() -> None:
    model = MODEL
    layer = private(UNIT, model.attention, 3, 100, 0)
    estimate = step(UNIT, model, 3, layer)
    assert estimate.bytes == model.weight_bytes + 2 * layer.bytes
    assert estimate.operations == 3 * model.weight_bytes + 2 * layer.operations
    assert estimate.seconds == max(model.weight_bytes, 3 * model.weight_bytes / 2) + 2 * layer.seconds
    late = step(replace(UNIT, launch=1.0, sampling=10.0), model, 64, layer)
    assert late.seconds - step(UNIT, model, 64, layer).seconds == pytest.approx(2 * 8 * 1.0 + 10.0 * 2)


def test_a_prompt_has_no_use_for_the_head() -> None:
    model = MODEL
    estimate = prefill(UNIT, model, 10)
    layers = model.weight_bytes - 2 * 61 * 32
    assert estimate.operations == 10 * layers + 2.0 * 2 * 4 * 16 * 100
    assert estimate.seconds == 10 * layers / 2 + 2.0 * 2 * 4 * 16 * 100 / 1


def test_every_measure_is_predicted_and_none_other() -> None:
    predicted = predict()
    assert set(predicted) == set(BY_KEY)
    assert predicted["10.blocks"] == peak_blocks(8199, 128, 64, 16) == 512 + 128 * 5 + 1
    assert predicted["1.private"] == pytest.approx(
        private(Machine(), FULL.layer, 32, 8191, 127).seconds / shared(Machine(), FULL.layer, 32, 8191, 127).seconds
    )
    assert predict(Machine(bandwidth=8.4e12))["7.wide"] > predicted["7.wide"]


def test_it_prints_a_line_for_every_measure() -> None:
    done = subprocess.run(
        [sys.executable, "bench/roofline.py", "--bandwidth", "4.3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["bandwidth", "4.3e+12"]
    assert lines[-1].endswith("<= 10")
    assert sum("tokens/s" in line for line in lines) == 2

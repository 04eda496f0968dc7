"""What a step's time goes to."""

import pytest
import torch

from bench.engine.curves import NATIVE, Point, Shown, part_of, shares, table
from engine.native import build


@pytest.mark.parametrize(
    ("operation", "shapes", "part"),
    [
        ("mkldnn::_linear_pointwise", [[8, 576], [49152, 576]], "products"),
        ("aten::addmm", [[], [8, 576], [576, 1536]], "products"),
        ("onednn::qlinear_pointwise", [[8, 576]], "products"),
        ("aten::_int_mm", [[8, 576]], "products"),
        ("aten::baddbmm", [[1], [3, 24, 64], [3, 64, 512]], "attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", [[1, 9, 509, 64]], "attention"),
        ("aten::_softmax", [[3, 24, 512], []], "attention"),
        ("aten::_softmax", [[8, 49152], []], "draws"),
        ("aten::mul", [[8, 576]], "other"),
        ("native::product", [], "products"),
        ("native::attention", [], "attention"),
        ("native::exponentials", [], "draws"),
        ("native::norm", [], "other"),
    ],
)
def test_an_operation_belongs_to_a_part(operation: str, shapes: list[list[int]], part: str) -> None:
    assert part_of(operation, shapes, 49152) == part


def test_kernels_in_c_are_seen_as_operations() -> None:
    assert {*NATIVE, "layers"} == set(build.SIGNATURES), "the last says by itself what its parts take"
    asked: list[tuple[object, ...]] = []
    shown = Shown("norm", lambda *arguments: asked.append(arguments))
    shown(1, 2)
    with torch.profiler.profile() as profile:
        Shown.watched = True
        shown(3, 4)
        Shown.watched = False
        shown(5, 6)
    assert asked == [(1, 2), (3, 4), (5, 6)]
    assert [(one.key, one.count) for one in profile.key_averages()] == [("native::norm", 1)]


def test_what_no_operation_took_is_the_hosts() -> None:
    own = [("products", 5.0), ("attention", 1.0), ("other", 1.0), ("other", 1.0)]
    assert shares(own, 10.0) == {"products": 0.5, "attention": 0.1, "draws": 0.0, "other": 0.2, "host": 0.2}


def test_a_row_says_how_a_step_has_grown() -> None:
    parts = {"products": 10.0, "attention": 4.0, "draws": 1.0, "other": 3.0, "host": 2.0}
    points = [Point(509, 1, 0.2, 20.0, parts), Point(509, 8, 0.25, 25.0, parts)]
    assert table("n", points, "n").splitlines() == [
        "| n | first token | a step | of the first row's | tokens/s | products | attention | draws | other | host |",
        "|---|---|---|---|---|---|---|---|---|---|",
        "| 1 | 0.20 s | 20.0 ms | 1.00x | 50 | 10.0 ms | 4.0 ms | 1.0 ms | 3.0 ms | 2.0 ms |",
        "| 8 | 0.25 s | 25.0 ms | 1.25x | 320 | 10.0 ms | 4.0 ms | 1.0 ms | 3.0 ms | 2.0 ms |",
    ]

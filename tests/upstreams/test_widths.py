"""Q6: what answers show of `n`."""

from __future__ import annotations

import pytest

from nproxy.upstreams.widths import Width


@pytest.mark.parametrize(
    ("calls", "known"),
    [
        ([(4, 4)], Width(None, 4)),
        ([(4, 4), (8, 8), (2, 2)], Width(None, 8)),
        ([(4, 1)], Width(1, 1)),
        ([(4, 0)], Width(1, 1)),
        ([(8, 4), (4, 4), (3, 3)], Width(4, 4)),
        ([(4, 1), (8, 2)], Width(2, 2)),
        ([(4, 1), (4, 4)], Width(None, 4)),  # it was upgraded
        ([(8, 8), (8, 1)], Width(None, 8, doubted=True)),
        ([(8, 8), (8, 1), (8, 8)], Width(None, 8)),
        ([(8, 8), (8, 1), (8, 1)], Width(1, 1)),
        ([(4, 4), (8, 2)], Width(4, 4)),  # 4 are known to work
        ([(8, 4), (4, 2)], Width(4, 4, doubted=True)),
        ([(8, 4), (4, 2), (8, 4)], Width(4, 4)),
        ([(8, 4), (4, 2), (8, 2)], Width(2, 2)),
    ],
)
def test_what_calls_teach(calls: list[tuple[int, int]], known: Width) -> None:
    width = Width()
    for asked, got in calls:
        width = width.after(asked, got)
    assert width == known

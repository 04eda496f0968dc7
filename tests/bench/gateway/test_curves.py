"""bench/gateway/curves: a point that has no figure costs none of the others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from bench.gateway import curves
from bench.gateway.cases import Case
from bench.gateway.peers import Peer, Running


def test_streams_that_were_not_all_answered_are_told_beside_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(at: int, case: Case, *_: object) -> curves.Point:
        if at == 8000:
            raise RuntimeError("streams, 8000: status 502")
        return curves.Point(at, 6400, 6300.0, 50.0, 0.4, 1.5, 2.5, 70.0)

    monkeypatch.setattr(curves, "measure", measure)
    told = curves.tables(played(monkeypatch, [1, 8000], [1]))
    assert "| 1 | 6,400 | 6,300 | 50.0 | 40% | 1.5 ms | 70 |" in told
    assert "8,000" not in told and told.endswith("\nNo figure: streams, 8000: status 502\n")


def played(monkeypatch: pytest.MonkeyPatch, counts: Sequence[int], widths: Sequence[int]) -> dict[str, Any]:
    """Run without an upstream and a gateway, of which nothing is asked."""
    monkeypatch.setattr(curves, "cores", lambda: (0, 0))
    monkeypatch.setattr(curves, "upstream", lambda: nullcontext((0, 0)))
    monkeypatch.setattr(Peer, "started", lambda *_: nullcontext(Running(0, None)))
    return curves.run(counts, widths, 0.1)

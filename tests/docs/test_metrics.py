"""The page of the metrics: nothing is left out of it, and nothing stands there that is no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from docs.generate import metrics

MORE = metrics.Told("nproxy_more", "counter", "More.", (), "sum")


@pytest.mark.parametrize(
    "change",
    [
        lambda told: {**told, "nproxy_more": MORE},
        lambda told: {name: one for name, one in told.items() if name != "nproxy_legs"},
        lambda told: {**told, "nproxy_legs": replace(told["nproxy_legs"], labels=("upstream", "colour"))},
        lambda told: {name: replace(one, labels=()) if "result" in one.labels else one for name, one in told.items()},
    ],
    ids=[
        "a metric that is not explained",
        "one that is no more",
        "a label that is not explained",
        "one that is no more",
    ],
)
def test_what_is_told_and_what_is_explained_must_agree(monkeypatch: pytest.MonkeyPatch, change: object) -> None:
    told = metrics.told()
    monkeypatch.setattr(metrics, "told", lambda: change(told))  # type: ignore[operator]
    with pytest.raises(LookupError):
        metrics.page()


def test_the_page_says_how_a_metric_adds_up() -> None:
    lines = metrics.page().splitlines()
    for name, word in (
        ("nproxy_requests_total", "the sum"),
        ("nproxy_replica_up", "the least"),
        ("nproxy_workers", "own"),
    ):
        (line,) = [line for line in lines if line.startswith(f"| `{name}` ")]
        assert word in line

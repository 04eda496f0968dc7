"""The page of the metrics is complete, and neither it nor another page names a metric that no longer exists."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest

from docs.generate import metrics
from nproxy.choices.commands import AnomalyKind, ResumeOutcome
from nproxy.choices.resume import Resume
from tests.docs.blocks import PAGES, name_of

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


@pytest.mark.parametrize(
    ("label", "values"), [("kind", AnomalyKind), ("nproxy_resumes.outcome", ResumeOutcome), ("how", Resume)]
)
def test_the_page_has_every_value_of_a_closed_set(label: str, values: object) -> None:
    assert sorted(metrics.explained()["labels"][label]["values"]) == sorted(get_args(values))


def test_the_page_says_how_a_metric_adds_up() -> None:
    lines = metrics.page().splitlines()
    for name, word in (
        ("nproxy_requests_total", "the sum"),
        ("nproxy_replica_up", "the smallest"),
        ("nproxy_workers", "own"),
    ):
        (line,) = [line for line in lines if line.startswith(f"| `{name}` ")]
        assert word in line


def test_the_metrics_that_pages_name_exist() -> None:
    known = metrics.told()
    strange = {
        f"{name_of(page)}: {name}"
        for page in PAGES
        for name in re.findall(r"\bnproxy_\w+", page.read_text(encoding="utf-8"))
        if not {name, re.sub(r"_(total|count|sum|bucket)$", "", name)} & {*known}
    }
    assert strange == set()

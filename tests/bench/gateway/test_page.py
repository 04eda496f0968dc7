"""A record as tables, and as a part of a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.gateway import page
from bench.gateway.cases import CASES


def cell(rate: float, cpu: float, limit: str = "") -> dict[str, Any]:
    return {"rate": rate, "cpu_us": cpu, "first_ms": 1.0, "last_first_ms": 1.5, "limit": limit, "rounds": []}


RECORD: dict[str, Any] = {
    "conditions": {
        "date": "2026-11-01",
        "commit": "abc",
        "cpu": "2 x some",
        "kernel": "6",
        "python": "3.11",
        "rounds": 3,
        "seconds": 2.0,
        "load_average_before": 0.1,
    },
    "cases": {name: {"says": case.says, "pace": case.pace, "unit": case.unit} for name, case in CASES.items()},
    "peers": {
        "direct": {"cases": {"whole-64": cell(100_000, 0, "load"), "first": {**cell(1, 0), "first_ms": 0.25}}},
        "nginx": {
            "version": "1.22",
            "settings": "settings/nginx.conf",
            "rss_mib": 14.2,
            "cases": {"whole-64": cell(40_000, 12.5, "machine"), "n8-burst": cell(9_000, 2)},
        },
        "Portkey": {
            "version": "1.15",
            "settings": "settings/portkey/package.json",
            "rss_mib": 250.0,
            "cases": {
                "burst": {"reason": "broken"},
                "paced": {"reason": "broken"},
                "n8-burst": {"reason": "it has no n"},
            },
        },
        "HAProxy": {"reason": "it cannot be had"},
        "nproxy": {
            "version": "1",
            "settings": "settings/nproxy.yaml",
            "rss_mib": 60.0,
            "cases": {
                "whole-64": cell(10_000, 50),
                "n8-whole": cell(8_000, 100),
                "n8-burst": cell(3_000, 6),
                "n8-first": cell(1, 9),
                "first": cell(1, 1),
            },
        },
    },
}


def rows(text: str, first: str) -> list[list[str]]:
    """All rows of all tables whose first cell is this."""
    split = [
        [word.strip() for word in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return [row for row in split if row[0] == first]


def test_the_tables() -> None:
    text = page.tables(RECORD)
    [nginx, against] = rows(text, "nginx")
    assert nginx == ["nginx", "-", "40,000~", "12.5", "-", "-", "-", "-", "-", "14"]
    assert against == ["nginx", "-", "0.25x", "4.00x", "-", "-"]
    assert rows(text, "direct") == [["direct", "-", "100,000\\*", "-", "-", "-", "-", "-", "0.25 ms", "-"]]
    [_, eight] = rows(text, "nproxy")
    assert eight == ["nproxy", "8,000", "100.0", "3,000", "6.0", "-", "-", "+0.75 ms", "+1.25 ms"]
    assert rows(text, "nginx, the same legs unmerged")[0][3:5] == ["9,000", "2.0"]
    assert rows(text, "largest RSS") == [["largest RSS", "80 MiB", "60 MiB", "60 MiB", "-", "aim"]]


def test_a_dash_has_its_reason() -> None:
    text = page.tables(RECORD)
    assert "- Portkey: broken (burst, paced)\n" in text
    assert "- Portkey: it has no n (n8-burst)\n" in text
    assert "- HAProxy: it cannot be had\n" in text


def test_every_setting_that_is_named_is_there() -> None:
    lines = [line for line in page.tables(RECORD).splitlines() if "](../" in line]
    assert len(lines) == 3
    for line in lines:
        assert (page.PAGE.parent / line.partition("](")[2].removesuffix(")")).exists()


@pytest.mark.parametrize("name", [page.NAME, "gateway-slow"])
def test_a_record_goes_between_the_marks_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    begin, end = page.marks(name)
    page.PAGE.write_text(f"before\n{begin}old\n{end}behind\n")
    for _ in range(2):
        page.record(RECORD, name)
        assert page.PAGE.read_text() == f"before\n{begin}{page.tables(RECORD)}{end}behind\n"
    assert json.loads((tmp_path / f"{name}.json").read_text()) == RECORD


def test_a_record_that_has_no_marks_leaves_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    page.PAGE.write_text("before\n")
    page.record(RECORD, "gateway-slow")
    assert page.PAGE.read_text() == "before\n"


def test_the_page_tells_what_was_recorded() -> None:
    """Whoever changes the tables writes the page anew: `page.record(json.loads(page.path().read_text()))`."""
    begin, end = page.marks()
    between = page.PAGE.read_text().partition(begin)[2].partition(end)[0]
    assert between == page.tables(json.loads(page.path().read_text()))


def test_a_processor_by_its_name() -> None:
    assert page._cpu("model name\t: Some CPU\nflags: x\n\nmodel name\t: Some CPU\n") == "2 x Some CPU"

"""Rounds to figures: medians, refusals, what a gateway adds, and the bars."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bench.gateway.figures import Cell, Round, added_ms, cell, goals, per_cpu_second, ratio, told
from bench.goals import Goal

ROUND = Round(rate=10.0, cpu_us=5.0, first_ms=1.0, last_first_ms=2.0, gateway_busy=0.9, load_busy=0.3, done=20)


def test_a_cell_is_the_median_of_each_figure_by_itself() -> None:
    rounds = [replace(ROUND, rate=rate, cpu_us=cpu) for rate, cpu in ((1.0, 9.0), (100.0, 7.0), (3.0, 8.0))]
    found = cell(rounds)
    assert isinstance(found, Cell)
    assert (found.rate, found.cpu_us, found.first_ms, found.last_first_ms) == (3.0, 8.0, 1.0, 2.0)
    assert told(found)["rounds"][1]["rate"] == 100.0


def test_one_wrong_answer_in_one_round_is_no_result() -> None:
    found = cell([ROUND, replace(ROUND, errors={"cut": 1}, complaint="status 200,\n 0 of 1")])
    assert found == "answers that were not whole: cut; the first: status 200, 0 of 1"
    assert told(found) == {"reason": found}


@pytest.mark.parametrize(
    ("gateway", "load", "wanted", "limit"),
    [
        (0.9, 0.3, math.inf, ""),
        (0.9, 0.96, math.inf, "load"),
        (0.1, 0.96, 0.0, "load"),
        (0.5, 0.6, math.inf, "machine"),
        (0.5, 0.6, 11.0, "machine"),
        (0.5, 0.6, 10.0, ""),  # at a pace that is held nothing need be used up
        (0.5, 0.6, 0.0, ""),
        (0.5, 0.85, math.inf, ""),
    ],
)
def test_what_kept_a_rate_down(gateway: float, load: float, wanted: float, limit: str) -> None:
    found = cell([replace(ROUND, gateway_busy=gateway, load_busy=load)] * 3, wanted=wanted)
    assert isinstance(found, Cell) and found.limit == limit


@pytest.mark.parametrize(("shares", "disturbed"), [((0, 0.2, 0), False), ((0.2, 0.2, 0), True), ((0.04,) * 3, False)])
def test_a_machine_that_was_not_given_its_time(shares: tuple[float, ...], disturbed: bool) -> None:
    found = cell([replace(ROUND, stolen=share) for share in shares])
    assert isinstance(found, Cell) and found.disturbed == disturbed


TABLE: dict[str, dict[str, dict[str, Any]]] = {
    "direct": {"first": {"first_ms": 0.1}, "whole-64": {"rate": 1000.0, "cpu_us": 0.0}},
    "nginx": {"paced": {"cpu_us": 8.0}, "whole-64": {"reason": "no"}},
    "LiteLLM": {"whole-64": {"rate": 2.0, "cpu_us": 5000.0}},
    "nproxy": {
        "first": {"first_ms": 0.6, "last_first_ms": 0.9},
        "whole-64": {"rate": 90.0, "cpu_us": 100.0},
        "paced": {"cpu_us": 24.0},
    },
}


def test_ratios_and_what_is_missing() -> None:
    assert ratio(TABLE, ("nproxy", "LiteLLM"), ("whole-64", "whole-64"), "rate") == 45.0
    assert ratio(TABLE, ("nproxy", "nginx"), ("whole-64", "whole-64"), "rate") is None
    assert ratio(TABLE, ("nproxy", "nobody"), ("whole-64", "whole-64"), "rate") is None
    assert ratio(TABLE, ("nproxy", "direct"), ("whole-64", "whole-64"), "cpu_us") is None
    assert per_cpu_second(TABLE, ("nproxy", "LiteLLM"), "whole-64") == 50.0


def test_a_first_word_is_held_against_no_gateway() -> None:
    assert added_ms(TABLE, "nproxy", "first") == pytest.approx(0.5)
    assert added_ms(TABLE, "nproxy", "first", "last_first_ms") == pytest.approx(0.8)
    assert added_ms(TABLE, "nginx", "first") is None
    assert added_ms({"nproxy": TABLE["nproxy"]}, "nproxy", "first") is None


def test_the_bars() -> None:
    found = {goal.says: goal for goal in goals(TABLE, {"nproxy": 70.0})}
    requests = found["requests/s against LiteLLM, 64 connections"]
    assert (requests.found, requests.verdict) == (45.0, "at least")
    assert (found["CPU per chunk against nginx, paced"].found, found["largest RSS"].found) == (3.0, 70.0)
    assert found["CPU per chunk against nginx, paced"].verdict == "**missed**"
    assert found["largest RSS"].verdict == "at least"
    assert found["later first word, idle, n=1"].verdict == "at least"
    assert found["requests/s against Portkey, 64 connections"].verdict == "not measured"


def test_the_bars_by_the_bare_relay() -> None:
    bare: dict[str, dict[str, Any]] = {
        "whole-64": {"cpu_us": 50.0},
        "paced": {"cpu_us": 20.0},
        "first": {"first_ms": TABLE["direct"]["first"]["first_ms"] + 0.4},
    }
    found = {goal.says: goal for goal in goals({**TABLE, "bare aiohttp": bare}, {})}
    assert found["CPU of a whole answer against bare aiohttp"].found == TABLE["nproxy"]["whole-64"]["cpu_us"] / 50
    assert found["CPU per chunk against bare aiohttp, paced"].found == pytest.approx(1.2)
    assert found["later first word against bare aiohttp, n=1"].found == pytest.approx(0.5 / 0.4)


@pytest.mark.parametrize(
    ("figure", "more", "verdict"),
    [
        (3.0, True, "**missed**"),
        (4.0, True, "at least"),
        (12.0, True, "aim"),
        (12.0, False, "aim"),
        (13.0, False, "at least"),
    ],
)
def test_a_bar_is_met_where_it_is_reached(figure: float, more: bool, verdict: str) -> None:
    least, aim = (4.0, 12.0) if more else (20.0, 12.0)
    assert Goal("", least, aim, figure, "x", more).verdict == verdict

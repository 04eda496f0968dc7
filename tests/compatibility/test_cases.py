"""The cases distinguish a gateway that does its work from one that does not, and their table is consistent."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from nproxy.cli.probe.findings import FACTS, Finding, no, yes
from tests.compatibility.cases import CASES, shape
from tests.compatibility.deployment import Deployment, alias
from tests.compatibility.matrix import examine, play, probe
from tests.compatibility.record import Outcome, Setting
from tests.conformance.table import data
from tests.fakes import quirks
from tests.fakes.behaviour import MODEL, Behaviour, words
from tests.fakes.upstream import FakeUpstream, Seen
from tests.real.counting_proxy import Counts

BLIND = ("stop", "prompts", "tools", "leaving")
"""Cases that use what a scripted server does not implement, and one that a busy machine may fail by a moment."""


def findings(**other: Finding) -> dict[str, dict[str, Finding]]:
    return {section: {name: other.get(name, yes("")) for name in facts} for section, facts in FACTS.items()}


def root(upstream: FakeUpstream) -> str:
    return upstream.url.removesuffix("/v1")


def as_real(call: Seen) -> Behaviour | None:
    """Refuse a top_p of the wrong type."""
    return Behaviour(refuse=("top_p",)) if "top_p" in call.body else None


@pytest.mark.parametrize("n", ["native", "ignore"])
async def test_all_pass_with_nproxy_between(n: Any, tmp_path: Path) -> None:
    names = [name for name in CASES if name not in BLIND]
    async with FakeUpstream(Behaviour(n=n, usage=prompt_once)) as upstream:
        upstream.choose = as_real
        probed = await asyncio.to_thread(probe, root(upstream), MODEL)
        record = await asyncio.to_thread(examine, root(upstream), MODEL, probed, tmp_path / "gateway.log", names)
    there: set[Setting] = {"auto", "native", "fanout"} if n == "native" else {"auto", "fanout"}
    assert list(record.outcomes) == names
    for name, went in record.outcomes.items():
        assert went == {setting: Outcome("pass") for setting in went}, name
        assert went.keys() == there & set(CASES[name].settings), name
    assert 'replicas: ["http://127.0.0.1:8000/v1"]' in record.entry


def prompt_once(seeds: list[int]) -> dict[str, Any]:
    return {"prompt_tokens": 5, "completion_tokens": 4 * len(seeds), "total_tokens": 5 + 4 * len(seeds)}


def prompt_each_time(seeds: list[int]) -> dict[str, Any]:
    return {"prompt_tokens": 5 * len(seeds), "completion_tokens": 4 * len(seeds), "total_tokens": 9 * len(seeds)}


def never_the_same() -> Behaviour:
    serial = itertools.count()
    return Behaviour(n="native", pieces=lambda seed: words(next(serial)))


WRONG: dict[str, Behaviour] = {
    "choices": Behaviour(),  # one came
    "calls": Behaviour(n="native"),  # none was counted
    "streams": Behaviour(n="native", quirk=quirks.role_missing),
    "streams say the same": never_the_same(),
    "usage": Behaviour(n="native", usage=prompt_each_time),
    "usage in streams": Behaviour(n="native", usage=prompt_each_time),
    "the same seed again": never_the_same(),
    "seed plus i": Behaviour(n="native", pieces=lambda seed: words(seed + 1)),
    "no seed": Behaviour(n="native", pieces=lambda seed: ["always"]),
    "greedy": Behaviour(n="refuse"),
    "stop": Behaviour(n="native", finish="length"),
    "logprobs": Behaviour(n="native", logprobs=False),
    "logprobs in streams": Behaviour(n="native", logprobs=False),
    "completions": Behaviour(),
    "prompts": Behaviour(n="native"),  # one text for all prompts
    "token ids": Behaviour(),
    "echo": Behaviour(n="native", refuse=("echo",)),
    "best of": Behaviour(n="refuse", refuse=("best_of",)),
    "tools": Behaviour(n="native"),
    "refusals": Behaviour(status=400, body=b"<html>no</html>", content_type="text/html"),
    "leaving": Behaviour(n="native"),  # a call stays open
    "wide": Behaviour(n="native", width=4),
    "as if fanned out": never_the_same(),
}


@pytest.mark.parametrize("name", CASES)
async def test_each_fails_where_nothing_stands_between(name: str) -> None:
    """The client asks a server that does this one thing wrong; the control server does everything right."""
    async with (
        FakeUpstream(WRONG[name], models=[alias("native")]) as asked,
        FakeUpstream(Behaviour(n="native", usage=prompt_once)) as control,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        control.choose = as_real
        found = findings(tools=yes("", "named"))
        deployed = Deployment(http, root(asked), root(control), MODEL, "native", found, {}, Counts(inflight=1))
        outcome = await play(CASES[name], deployed)
    assert outcome.verdict == ("not applicable" if name == "stop" else "fail"), outcome


def test_what_the_server_lacks_is_no_failure() -> None:
    deployed = Deployment(httpx.AsyncClient(), "", "", MODEL, "auto", findings(echo=no("ignored")), {}, Counts())
    assert asyncio.run(play(CASES["echo"], deployed)) == Outcome("not applicable", "/completions: ignored")


def test_what_helps_is_no_lack() -> None:
    found = findings(sampling=no("equal answers", "generation_config"))
    deployed = Deployment(httpx.AsyncClient(), "", "", MODEL, "auto", found, {}, Counts())
    assert CASES["no seed"].why_not(deployed) is None


def needs() -> Iterator[tuple[str, str]]:
    for case in CASES.values():
        for need in case.needs:
            section, _, fact = need.partition(".")
            yield section, fact


def test_cases_name_rows_and_facts_that_there_are() -> None:
    told = data()
    assert {row for case in CASES.values() for row in case.rows} <= told.rows.keys() | told.elsewhere.keys()
    assert all(fact in FACTS[section] for section, fact in needs())
    assert all(case.holds.endswith(".") and "\n" not in case.holds for case in CASES.values())


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"a": 1, "b": "x"}, {"b": "y", "a": 2}, True),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([1, 2, 3], [4], True),
        ([{"a": 1}], [{"a": 1}, {"a": None}], False),
    ],
)
def test_shapes(one: Any, other: Any, equal: bool) -> None:
    assert (shape(one) == shape(other)) is equal

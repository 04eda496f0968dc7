"""What is asked, and what a run is told to do."""

from __future__ import annotations

import json
import math

import pytest

from bench.engine.options import chosen
from bench.gateway.cases import CASES, IN_TURNS, PACES
from bench.gateway.programs import Count, Told


def test_a_question_as_it_travels() -> None:
    head, _, body = CASES["n8-paced"].request(81, {"Authorization": "Bearer x"}, "/chat").partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /chat HTTP/1.1"
    assert (
        f"Content-Length: {len(body)}" in lines and "Authorization: Bearer x" in lines and "Host: 127.0.0.1:81" in lines
    )
    asked = json.loads(body)
    assert (asked["n"], asked["stream"], asked["max_tokens"]) == (8, True, 64)
    assert asked["messages"][-1]["content"] == "chunks=64 pace=500"
    assert b"chunks=8 pace=200 think=20" in IN_TURNS["n8-first-thought"].request(81, {})
    assert "n" not in json.loads(CASES["whole-16"].request(81, {}).partition(b"\r\n\r\n")[2])


def test_the_same_legs_unmerged() -> None:
    case = CASES["n8-burst"]
    apart = case.unmerged()
    assert (apart.connections, apart.n, apart.chunks) == (256, 1, case.chunks)
    assert CASES["burst"].unmerged() == CASES["burst"]


def test_the_cases_hang_together() -> None:
    assert list(PACES) == sorted(PACES, reverse=True)
    for case in CASES.values():
        assert case.unit == ("chunks" if case.stream else "choices")
        assert not case.pace or case.pace == PACES[0]


def test_what_a_gateway_is_asked_for() -> None:
    assert CASES["burst"].wanted == CASES["whole-16"].wanted == math.inf
    assert CASES["n8-paced"].wanted == CASES["n8-paced"].unmerged().wanted == 0.9 * 500 * 32 * 8
    assert CASES["first"].wanted == 0.0


def test_some_of_the_names_in_the_order_of_the_table() -> None:
    names = {"a": 1, "b": 2, "c": 3}
    assert chosen(None, names) == ["a", "b", "c"]
    assert chosen("c, b", names) == ["b", "c"]
    assert chosen("c", names, always="a") == ["a", "c"]
    with pytest.raises(SystemExit, match="there is no x; there are a, b, c"):
        chosen("x,a", names)


def test_what_the_client_prints() -> None:
    line = {"seconds": 2.0, "in_time": {"answers": 1, "chunks": 64}, "all": {"answers": 2, "chunks": 128}}
    times = {"first_us": 1, "last_first_us": 2, "whole_us": 3, "whole_p99_us": 4, "reconnects": 5, "errors": {"cut": 6}}
    told = Told.read(json.dumps({**line, **times}), 0.5, "status 200")
    assert (told.in_time, told.all) == (Count(1, 64), Count(2, 128))
    assert (told.errors, told.cpu_seconds, told.complaint) == ({"cut": 6}, 0.5, "status 200")

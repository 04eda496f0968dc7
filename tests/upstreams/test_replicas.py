"""Replicas: under which URL a request target is found there, and how long its calls take."""

from __future__ import annotations

import time

import pytest

from tests.upstreams.conftest import replica_at


@pytest.mark.parametrize(
    ("base", "target", "url"),
    [
        ("http://h/v1", "/v1/embeddings?a=%2F", "http://h/v1/embeddings?a=%2F"),
        ("http://h/v1", "/v1", "http://h/v1"),
        ("http://h/v1", "/tokenize", "http://h/tokenize"),
        ("http://h/v1", "/v12/x", "http://h/v12/x"),
        ("http://h/api", "/v1/embeddings", "http://h/api/embeddings"),
        ("http://h/api", "/v1?a=b", "http://h/api?a=b"),
        ("http://h/api", "/v1", "http://h/api"),
        ("http://h/api", "/v12/x", "http://h/api/v12/x"),
        ("http://h/api/v1", "/tokenize", "http://h/api/tokenize"),
    ],
)
def test_the_base_replaces_v1_and_other_paths_are_beside_it(base: str, target: str, url: str) -> None:
    assert str(replica_at(base).root_url(target)) == url


def test_the_time_of_calls_adds_up_over_those_beside_each_other_and_goes_on_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    replica, one, other = replica_at("http://h/v1"), object(), object()
    assert replica.call_seconds(now) == 0.0
    replica.begin_call(one, 1, now, alone=False)
    now = 1002.0
    replica.begin_call(other, 4, now, alone=False)
    assert replica.call_seconds(now) == 2.0
    now = 1003.0
    replica.end_call(one, 1)
    now = 1007.0
    assert replica.call_seconds(now) == 2 + 2 + 4
    replica.end_call(other, 4)
    now = 2000.0
    assert replica.call_seconds(now) == 8.0

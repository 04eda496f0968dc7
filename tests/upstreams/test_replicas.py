"""Replicas: under which URL a request target is found there."""

from __future__ import annotations

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

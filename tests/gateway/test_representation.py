"""Answers that stay the same: by their tags, plain and compressed; a page's file as well as the API's document."""

from __future__ import annotations

import gzip

import pytest

from nproxy.gateway.representation import takes_gzip
from tests.gateway.conftest import Gateway

PATHS = pytest.mark.parametrize("path", ["/playground/style.css", "/openapi.json"])


@PATHS
async def test_what_a_client_has_is_not_sent_again(gateway: Gateway, path: str) -> None:
    tag = (await gateway.client.get(path)).headers["etag"]
    for known in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        again = await gateway.client.get(path, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["cache-control"] == "no-cache"
    changed = await gateway.client.get(path, headers={"if-none-match": 'W/"of another version"'})
    assert changed.status_code == 200


@PATHS
async def test_it_is_compressed_for_those_who_can_read_it(gateway: Gateway, path: str) -> None:
    async with gateway.client.stream("GET", path, headers={"accept-encoding": "br, gzip"}) as answer:
        raw = b"".join([part async for part in answer.aiter_raw()])
    assert (answer.headers["content-encoding"], answer.headers["vary"]) == ("gzip", "Accept-Encoding")
    plain = await gateway.client.get(path, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == "Accept-Encoding"
    assert gzip.decompress(raw) == plain.content
    assert len(raw) < len(plain.content) / 2


ACCEPTED = {"gzip": True, "br, GZIP;q=0.1": True, "x-gzip": True, "": False, "gzip;q=0": False, "gzip; q=0.00": False}


@pytest.mark.parametrize(("header", "taken"), [*ACCEPTED.items(), ("notgzip, br", False)])
def test_accept_encoding(header: str, taken: bool) -> None:
    assert takes_gzip(header) is taken

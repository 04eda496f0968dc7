"""Which headers go to an upstream, and which come back to the client."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict
from pydantic import SecretStr

from nproxy.upstreams.headers import ApiKey, downward, upward

KEYS = {"Authorization": "Bearer theirs", "api-key": "theirs", "x-api-key": "theirs", "x-goog-api-key": "theirs"}
FOR_ONE_CONNECTION = (
    *("Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Proxy-Connection"),
    *("Proxy-Authorization", "Proxy_Authorization", "Host", "Content-Length", "Content_Length", "Expect", "Cookie"),
)
FOR_ONE_ADDRESS = (
    *("Connection", "Transfer-Encoding", "Content-Length", "Server", "Date", "X-Request-Id", "Set-Cookie", "Refresh"),
    *("Alt-Svc", "Clear-Site-Data", "Strict-Transport-Security", "Access-Control-Allow-Origin"),
)


@pytest.mark.parametrize("name", ["X-Title", "User-Agent", "Accept", "OpenAI-Organization", "traceparent"])
def test_other_headers_go_up_as_they_are(name: str) -> None:
    assert upward({name: "value"}, "passthrough") == {name: "value"}


@pytest.mark.parametrize("name", FOR_ONE_CONNECTION)
def test_O3_O4_what_is_for_this_connection_or_this_host_does_not_go_up(name: str) -> None:
    assert not upward({name: "value"}, "passthrough")


def test_O3_what_the_connection_header_names_does_not_go_on() -> None:
    headers = CIMultiDict([("Connection", "close, X-Private"), ("Connection", "x-other"), ("x-private", "1")])
    headers.add("X-Other", "1")
    assert not upward(headers, "passthrough") and not downward(headers)


def test_O1_the_clients_keys_go_up_only_if_they_are_passed_through() -> None:
    assert upward(KEYS, "passthrough") == KEYS
    assert not upward(KEYS, "none")
    assert not upward({"X_Api_Key": "theirs", "X-Goog_Api-Key": "theirs"}, "none"), "as CGI reads these names"


def test_O1_a_key_of_the_upstream_takes_their_place() -> None:
    assert upward(KEYS, SecretStr("ours")) == {"Authorization": "Bearer ours"}


@pytest.mark.parametrize("api_key", ["passthrough", "none", SecretStr("ours")])
def test_the_engine_is_told_the_caller_whatever_the_client_says(api_key: ApiKey) -> None:
    assert upward({"x-api-key": "another"}, api_key, caller="team-a").getall("x-api-key") == ["team-a"]


def test_names_to_leave_out_may_be_added() -> None:
    assert upward({"Accept-Encoding": "gzip", "Accept": "*/*"}, "none", ("accept-encoding",)) == {"Accept": "*/*"}


@pytest.mark.parametrize("name", FOR_ONE_ADDRESS)
def test_what_is_for_the_upstreams_own_address_does_not_come_back(name: str) -> None:
    assert downward({name: "value", "openai-processing-ms": "7"}) == {"openai-processing-ms": "7"}

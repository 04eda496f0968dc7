"""From where a request comes."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from nproxy.gateway.proxies import client_address, neighbourhood
from tests.gateway.conftest import Start, body

TRUSTED = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["198.51.100.7"], "192.0.2.1"),  # nobody who is trusted says so
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["203.0.113.9, 198.51.100.7"], "198.51.100.7"),  # what the client wrote stands on the left
        ("10.0.0.1", ["203.0.113.9, 198.51.100.7, 10.0.0.2"], "198.51.100.7"),
        ("10.0.0.1", ["203.0.113.9", "198.51.100.7", "10.0.0.2"], "198.51.100.7"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["198.51.100.7:4711"], "198.51.100.7"),
        ("10.0.0.1", ["[2001:db8::7]:4711"], "2001:db8::7"),
        ("10.0.0.1", ["2001:db8::7"], "2001:db8::7"),
        ("::ffff:10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("fd00::1", ["::ffff:198.51.100.7"], "198.51.100.7"),
        ("fe80::1%eth0", [], "fe80::1"),
        ("10.0.0.1", ["unknown"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7, , 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ['<script>, "'], "10.0.0.1"),
        (None, ["198.51.100.7"], "local"),
    ],
)
def test_the_rightmost_address_that_is_no_proxys(peer: str | None, forwarded: list[str], client: str) -> None:
    assert client_address(peer, forwarded, TRUSTED) == client


def test_without_trusted_proxies_nobody_is_believed() -> None:
    assert client_address("127.0.0.1", ["198.51.100.7"], []) == "127.0.0.1"
    assert client_address("::ffff:192.0.2.1", [], []) == "192.0.2.1", "as with some"


@pytest.mark.parametrize(
    ("address", "same"),
    [("192.0.2.1", "192.0.2.1"), ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"), ("local", "local")],
)
def test_one_client_has_many_addresses(address: str, same: str) -> None:
    assert neighbourhood(address) == same


@pytest.mark.parametrize(("trusted", "client"), [(["127.0.0.1"], "198.51.100.7"), (["10.0.0.0/8"], "127.0.0.1")])
async def test_the_log_tells_the_client(
    start: Start, caplog: pytest.LogCaptureFixture, trusted: list[str], client: str
) -> None:
    gateway = await start(config={"listen": {"port": 0, "trusted_proxies": trusted}})
    with caplog.at_level("INFO"):
        lines = [("X-Forwarded-For", "203.0.113.9"), ("X-Forwarded-For", "198.51.100.7")]
        await gateway.client.get("/v1/models", headers=lines)
    (record,) = [record for record in caplog.records if record.name == "nproxy.access"]
    assert record.__dict__["fields"]["client"] == client


async def test_limits_go_by_the_client_and_all_it_has_of_addresses(start: Start) -> None:
    limits = {"limits": {"requests_per_minute": 1}}
    gateway = await start(config={"listen": {"port": 0, "trusted_proxies": ["127.0.0.1"]}, **limits})
    statuses = []
    for client in (
        "2001:db8::1",
        "2001:db8::2:0:2",
        "2001:db8:0:1::1",
        "198.51.100.7",
        "198.51.100.8",
        "198.51.100.7:9",
    ):
        answer = await gateway.post(body(), headers={"X-Forwarded-For": client})
        statuses.append(answer.status_code)
    assert statuses == [200, 429, 200, 200, 200, 429]


class Unsplit(str):
    """A line that nobody may look into."""

    def split(self, *_: object, **__: object) -> list[str]:
        raise AssertionError("it was read")


def test_what_is_not_believed_is_not_read() -> None:
    """A head may hold a million commas."""
    assert client_address("192.0.2.1", [Unsplit(",")], TRUSTED) == "192.0.2.1"
    assert client_address("10.0.0.1", [Unsplit(","), "198.51.100.7"], TRUSTED) == "198.51.100.7"

"""Which replicas an upstream's settings, its names and what registered come to."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.config import Upstream as Settings
from nproxy.upstreams.gate import Gate, Policy
from nproxy.upstreams.membership import Registered, Server, members
from nproxy.upstreams.replicas import Replica


def settings(*replicas: object) -> Settings:
    return Settings.model_validate({"name": "u", "replicas": list(replicas)})


def come_to(
    *replicas: object, addresses: dict[str, tuple[str, ...]] | None = None, registered: Registered | None = None
) -> list[Replica]:
    return members(settings(*replicas).replicas, addresses or {}, registered or Registered())


def test_every_address_of_a_name_is_a_replica_called_by_the_name() -> None:
    first, second = come_to(
        {"dns": "vllm.svc:8000", "weight": 2}, addresses={"vllm.svc": ("10.0.0.7", "fd00::7"), "other": ("10.9.9.9",)}
    )
    assert (first.base, second.base) == ("http://10.0.0.7:8000/v1", "http://[fd00::7]:8000/v1")
    assert str(second.url("/models")) == "http://[fd00::7]:8000/v1/models"
    assert {one.authority for one in (first, second)} == {"vllm.svc:8000"}
    assert {(one.source, one.weight) for one in (first, second)} == {("dns", 2)}


def test_the_port_that_is_usual_stands_in_no_host_header() -> None:
    (tls,) = come_to({"dns": "vllm.svc:443", "scheme": "https", "path": "/"}, addresses={"vllm.svc": ("10.0.0.7",)})
    assert (tls.base, tls.authority) == ("https://10.0.0.7", "vllm.svc")


@pytest.mark.parametrize("port", [443, 8443])
def test_the_dot_at_the_end_of_a_name_is_for_the_resolver_only(port: int) -> None:
    """Certificates and SNI have none, so a replica over TLS would never be trusted."""
    (tls,) = come_to({"dns": f"vllm.svc.:{port}", "scheme": "https"}, addresses={"vllm.svc.": ("10.0.0.7",)})
    assert tls.server_name == "vllm.svc"
    assert tls.authority == ("vllm.svc" if port == 443 else "vllm.svc:8443")


def test_a_name_without_an_address_has_no_replica() -> None:
    assert come_to("dns:vllm.svc:8000") == []


def test_an_address_counts_once_and_the_configuration_weighs_it() -> None:
    url = "http://10.0.0.7:8000/v1"
    (only,) = come_to(
        "dns:vllm.svc:8000",
        {"url": url, "weight": 3},
        url,
        addresses={"vllm.svc": ("10.0.0.7", "10.0.0.7")},
        registered=Registered((Server(url, 5, ("m",)),)),
    )
    assert (only.source, only.weight, only.authority) == ("static", 3, None)
    assert only.models == frozenset({"m"}), "which models it serves, only the server has said"


def test_an_address_is_known_in_whatever_way_it_is_written() -> None:
    """Over a URL with the scheme's own port, behind a name, and announced with a dot at its end."""
    only, named = come_to(
        "http://[FD00:0::7]:80/v1/",
        "dns:vllm.svc:80",
        "http://Host.",
        addresses={"vllm.svc": ("fd00::7",)},
        registered=Registered((Server("http://host/v1", 5, ("m",)),)),
    )
    assert (only.label, only.base) == ("http://[fd00::7]/v1", "http://[fd00::7]/v1")
    assert (named.label, named.base) == ("http://host/v1", "http://host./v1"), "a resolver is asked as it was said"
    assert named.models == frozenset({"m"})


def test_who_announced_itself_has_the_weight_and_the_models_that_it_said() -> None:
    listed, server = come_to("http://a/v1", registered=Registered((Server("http://b/v1", 2.5, ("m",)),)))
    assert (listed.weight, listed.models, listed.source) == (1, None, "static")
    assert (server.weight, server.models, server.source) == (2.5, frozenset({"m"}), "registered")
    assert server.serves("m") and server.serves(None) and not server.serves("other")
    assert listed.serves("other")


def test_an_address_drains_wherever_it_comes_from() -> None:
    everyone = come_to(
        "http://a/v1",
        "dns:n:1",
        addresses={"n": ("10.0.0.1",)},
        registered=Registered(
            (Server("http://b/v1"),), frozenset({"http://a/v1", "http://10.0.0.1:1/v1", "http://gone/v1"})
        ),
    )
    assert {one.label: one.draining for one in everyone} == {
        "http://a/v1": True,
        "http://10.0.0.1:1/v1": True,
        "http://b/v1": False,
    }


def test_a_replica_keeps_its_object_while_its_address_stays() -> None:
    gate = Gate(come_to("http://a/v1", registered=Registered((Server("http://b/v1"),))), Policy())
    a, b = gate.replicas
    a.legs = b.legs = 1
    gate.replace(
        come_to("http://a/v1", registered=Registered((Server("http://b/v1", 4, ("m",)),), frozenset({"http://b/v1"})))
    )
    assert gate.replicas == (a, b)
    assert (b.weight, b.models, b.draining, b.legs) == (4, frozenset({"m"}), True, 1)
    gate.replace(come_to("http://a/v1"))
    assert list(gate.replicas) == [a] and b.legs == 1


URLS = st.sampled_from([f"http://{host}/v1" for host in "abcd"])
SERVERS = st.builds(Server, URLS, st.floats(0.1, 10), st.none() | st.lists(st.sampled_from("xyz")).map(tuple))
REGISTERED = st.builds(Registered, st.lists(SERVERS).map(tuple), st.frozensets(URLS))


@given(REGISTERED)
def test_registrations_are_the_same_after_a_journey_as_json(registered: Registered) -> None:
    assert Registered.read(json.loads(json.dumps(registered.to_json()))) == registered


@given(st.lists(URLS), REGISTERED)
def test_no_label_stands_twice_whatever_comes_together(listed: list[str], registered: Registered) -> None:
    labels = [one.label for one in come_to(*listed, registered=registered)]
    assert len(set(labels)) == len(labels)
    assert set(labels) == {*listed, *(server.url for server in registered.servers)}

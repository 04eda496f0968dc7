"""Which replicas an upstream has: from the configuration, from DNS names in it, and from servers that registered.

Pure: other modules resolve names, keep leases and pass the result to a gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from nproxy import config
from nproxy.config import DnsName
from nproxy.config.replicas import DEFAULT_PORTS, base_url, known_as
from nproxy.upstreams.replicas import Replica


@dataclass(frozen=True, slots=True)
class Server:
    """A server that has registered itself.

    url: its base. models: those that it serves; None for all models of the upstream.
    """

    url: str
    weight: float = 1.0
    models: tuple[str, ...] | None = None

    @property
    def label(self) -> str:
        """The label of its replica."""
        return known_as(self.url)

    def to_json(self) -> dict[str, Any]:
        """The server as JSON data."""
        return {"url": self.url, "weight": self.weight, "models": None if self.models is None else list(self.models)}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read a server from the data that `to_json` returned."""
        models = data["models"]
        return cls(data["url"], data["weight"], None if models is None else tuple(models))


@dataclass(frozen=True, slots=True)
class Registered:
    """What the registry holds for one upstream: registered servers, and addresses that drain."""

    servers: tuple[Server, ...] = ()
    draining: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """The same as JSON data."""
        return {"servers": [server.to_json() for server in self.servers], "draining": sorted(self.draining)}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read it from the data that `to_json` returned."""
        return cls(tuple(map(Server.read, data["servers"])), frozenset(data["draining"]))


NOBODY = Registered()


def members(
    listed: Iterable[config.Replica | DnsName], addresses: Mapping[str, Sequence[str]], registered: Registered = NOBODY
) -> list[Replica]:
    """Build the replicas of an upstream as new objects, each address once; `Gate.replace` finds the old ones by label.

    addresses: what host names resolve to; a name that is missing has no server yet. An address that is known in several
    ways counts as the first of: listed as it is, behind a name, registered. If it is registered, its models are those
    given there.
    """
    entries = tuple(listed)
    known: dict[str, Replica] = {}
    for entry in entries:
        if not isinstance(entry, DnsName):
            known.setdefault(str(entry), Replica.from_config(entry))
    for entry in entries:
        if isinstance(entry, DnsName):
            for address in addresses.get(entry.name, ()):
                behind = _behind(entry, address)
                known.setdefault(behind.label, behind)
    for server in registered.servers:
        replica = Replica(server.url, None, server.label, source="registered", weight=server.weight)
        known.setdefault(server.label, replica).models = None if server.models is None else frozenset(server.models)
    for label in registered.draining & known.keys():
        known[label].draining = True
    return list(known.values())


def _behind(entry: DnsName, address: str) -> Replica:
    """The replica at one address of a name. Connections go to the address; Host and certificate have the name."""
    url = base_url(entry.scheme, address, entry.port, entry.path)
    usual = DEFAULT_PORTS[entry.scheme] == entry.port
    name = entry.name.removesuffix(".")  # which is for resolvers only; the Host of URLs that are listed has none either
    authority = name if usual else f"{name}:{entry.port}"
    return Replica(url, None, url, authority=authority, source="dns", weight=entry.weight)

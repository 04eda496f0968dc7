"""Which replicas an upstream has: what the configuration lists, what its names resolve to, and who announced itself.

Pure: others resolve names, keep leases and hand the outcome to a gate.
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
    """A server that announced itself. url: its base. models: those that it serves; None: all of the upstream's."""

    url: str
    weight: float = 1.0
    models: tuple[str, ...] | None = None

    @property
    def label(self) -> str:
        """What its replica is called."""
        return known_as(self.url)

    def to_json(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        return {"url": self.url, "weight": self.weight, "models": None if self.models is None else list(self.models)}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Self:
        """The server that `told` told of."""
        models = told["models"]
        return cls(told["url"], told["weight"], None if models is None else tuple(models))


@dataclass(frozen=True, slots=True)
class Registered:
    """What the registry has of one upstream: servers that announced themselves, and addresses that drain."""

    servers: tuple[Server, ...] = ()
    draining: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        return {"servers": [server.to_json() for server in self.servers], "draining": sorted(self.draining)}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Self:
        """What `told` told of."""
        return cls(tuple(map(Server.read, told["servers"])), frozenset(told["draining"]))


NOBODY = Registered()


def members(
    listed: Iterable[config.Replica | DnsName], addresses: Mapping[str, Sequence[str]], registered: Registered = NOBODY
) -> list[Replica]:
    """The replicas that these come to, each address once, as new objects: `Gate.replace` knows the old ones by label.

    addresses: what host names resolve to; a name that is not among them has no server yet. An address that is known in
    several ways is the first of: listed as it is, behind a name, announced; its models are those that it announced.
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
    """The replica at one address of a name: it is connected to there, and called by the name."""
    url = base_url(entry.scheme, address, entry.port, entry.path)
    usual = DEFAULT_PORTS[entry.scheme] == entry.port
    authority = entry.name if usual else f"{entry.name}:{entry.port}"
    return Replica(url, None, url, authority=authority, source="dns", weight=entry.weight)

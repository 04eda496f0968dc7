"""From where a request comes, where proxies stand in between."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_IPV4_IN_IPV6 = "::ffff:"
LOCAL = "local"
"""The client of a Unix socket."""


def client_address(peer: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """The address nearest to the client that somebody trusted tells of.

    peer: of the connection, None where it has no address. forwarded: the lines of X-Forwarded-For, each proxy's word
    behind that of the one before it. Read from the right, as everybody but the last proxy can have written what stands
    on the left: the first address that is no trusted proxy's is the client's. What is no address ends the reading.
    """
    if peer is None:
        return LOCAL
    if not trusted:
        return peer.removeprefix(_IPV4_IN_IPV6)
    at = _address(peer)
    hops = (hop for line in reversed(forwarded) for hop in reversed(line.split(",")))  # as far as they are believed
    while at is not None and any(at in network for network in trusted):
        told = _address(next(hops, ""))
        if told is None:
            break
        at = told
    return peer if at is None else str(at)


def neighbourhood(address: str) -> str:
    """What one client has at its disposal: an IPv4 address, of IPv6 the 64 bits in front."""
    parsed = _address(address) if ":" in address else None
    return address if not isinstance(parsed, IPv6Address) else str(IPv6Network((int(parsed) >> 64 << 64, 64)))


def _address(text: str) -> Address | None:
    """Read `10.0.0.1`, `10.0.0.1:4711`, `[::1]:4711` or `::1%eth0`; IPv4 inside IPv6 is IPv4."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found

"""The client's address of a request that came through proxies."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_IPV4_IN_IPV6 = "::ffff:"
LOCAL = "local"
"""The address of clients on a Unix socket."""


def client_address(peer: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """Return the address nearest to the client that was reported by a trusted proxy.

    peer: of the connection; None if it has no address. forwarded: the X-Forwarded-For lines, to which each proxy
    appends. They are read from the right, because anybody can have written the entries on the left: the first address
    that is not a trusted proxy's is the client's. Reading ends at an entry that is not an address.
    """
    if peer is None:
        return LOCAL
    if not trusted:
        return peer.removeprefix(_IPV4_IN_IPV6)
    at = _address(peer)
    hops = (hop for line in reversed(forwarded) for hop in reversed(line.split(",")))  # read as far as needed
    while at is not None and any(at in network for network in trusted):
        before = _address(next(hops, ""))
        if before is None:
            break
        at = before
    return peer if at is None else str(at)


def neighbourhood(address: str) -> str:
    """Return the network that one client controls: an IPv4 address, or the first 64 bits of an IPv6 address."""
    parsed = _address(address) if ":" in address else None
    return address if not isinstance(parsed, IPv6Address) else str(IPv6Network((int(parsed) >> 64 << 64, 64)))


def _address(text: str) -> Address | None:
    """Parse `10.0.0.1`, `10.0.0.1:4711`, `[::1]:4711` or `::1%eth0`. IPv4-mapped IPv6 becomes IPv4. None if invalid."""
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

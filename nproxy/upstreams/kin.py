"""What the calls of one request share where their replicas are chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

from nproxy.upstreams.replicas import Replica


@dataclass(slots=True, eq=False)
class Kin:
    """The calls of one request to one upstream.

    model: the upstream's name of the one that they ask for, None where that is not known; not every replica may serve
    it. together: they belong on one replica. prompt: a hash of what a server's prefix cache would see first, by which
    that one is chosen; None where any will do. replica: where the first of them went. failed: the replicas that each
    leg has failed on, which it avoids while another one can take it. blamed: the replicas whose breaker has counted a
    failure of this request, which counts once however many of its legs fail there.
    """

    model: str | None = None
    together: bool = False
    prompt: bytes | None = None
    replica: Replica | None = None
    failed: dict[int, set[Replica]] = field(default_factory=dict)
    blamed: set[Replica] = field(default_factory=set)

    def place(self) -> Replica | None:
        """Where the next one belongs; None where that is open, or that replica cannot be reached."""
        if not self.together or self.replica is None or self.replica.avoided() or self.replica.draining:
            return None
        return self.replica

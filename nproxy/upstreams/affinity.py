"""Prefix affinity: requests that begin alike go to one replica, which has their beginning in its prefix cache.

A prompt's home is found by rendezvous hashing (Thaler and Ravishankar, 1998) with weights (Resch, 2015: the score of a
replica is -weight / ln of its hash). So every gateway finds the same one, and if a replica comes or goes, only the
prompts move whose home it is. A home that has 1.25 times its share of what is in flight gives way to the next in the
prompt's order (Mirrokni, Thorup and Zadimoghaddam, Consistent Hashing with Bounded Loads, 2018).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from math import ceil, log

from nproxy.openai.jsonvalue import JSON
from nproxy.openai.requests import CompletionRequest, Request
from nproxy.upstreams.replicas import Replica

BOUND = 1.25
REMEMBERED = 1024
"""The most prompts whose orders are remembered."""
LEADING = 4096
"""Characters of a message or a prompt that are hashed.

A shorter text costs little to compute again. A longer one, say a document followed by different questions, is
recognized by its beginning.
"""


class Homes:
    """Finds the homes of prompts among the same replicas, and remembers the orders of the last prompts.

    An order is needed for each leg of a request, and for each turn of a conversation.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._weight = sum(replica.weight for replica in replicas)
        self._orders: dict[bytes, Sequence[Replica]] = {}

    def of(self, prompt: bytes) -> Replica:
        """The replica for a prompt, by its hash: the first in its order that does not have too much in flight."""
        order = self._orders.get(prompt)
        if order is None:
            if len(self._orders) >= REMEMBERED:
                del self._orders[next(iter(self._orders))]
            order = sorted(self._replicas, key=lambda replica: _score(replica, prompt), reverse=True)
            self._orders[prompt] = order
        load, weight = sum([replica.choices for replica in order]) + 1, self._weight
        for replica in order:
            if replica.choices < ceil(BOUND * load * replica.weight / weight):
                return replica
        return order[0]


def prompt_hash(request: Request) -> bytes:
    """A hash of what a server's prefix cache sees first; the same for all turns of one conversation.

    Of a chat: the model, and the messages up to the first of the user. Of a legacy completion: the model and the first
    prompt.
    """
    seen = blake2b(request.model.encode("utf-8", "surrogatepass"), digest_size=16)
    for text in _beginning(request):
        seen.update(b"\0")
        seen.update(text[:LEADING].encode("utf-8", "surrogatepass"))
    return seen.digest()


def _beginning(request: Request) -> Iterator[str]:
    if isinstance(request, CompletionRequest):
        first = request.prompt[0] if request.prompt else ""
        yield first if isinstance(first, str) else " ".join(map(str, first[:LEADING]))
        return
    messages = request.body.fields.get("messages")
    for message in messages if isinstance(messages, list) else ():
        yield from _texts(message)
        if isinstance(message, dict) and message.get("role") == "user":
            return


def _texts(value: JSON) -> Iterator[str]:
    """All texts in a message, including those in its parts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def _score(replica: Replica, prompt: bytes) -> float:
    drawn = int.from_bytes(blake2b(replica.label.encode(), digest_size=8, key=prompt).digest())
    return -replica.weight / log((drawn + 0.5) / 2**64)

"""Responses that later requests may continue from: kept in memory, and forgotten if they are too many.

The owner with most is the one to lose its least recently used: nobody can displace what others have kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from engine.server.endpoints.responses.items import Item
from nproxy.openai.errors import invalid_request, shorten
from nproxy.openai.jsonvalue import JSON, dumps


@dataclass(slots=True, eq=False)
class Turn:
    """One kept response."""

    owner: str
    """The salt of its API key; only requests with this key may see it."""
    response: Mapping[str, JSON]
    input: tuple[Item, ...]
    """Its own input items."""
    output: tuple[Item, ...]
    """Its output items."""
    previous: Turn | None
    """The turn that it continues from. That one is kept as long as this one, listed or not."""
    size: int = field(init=False)
    """Bytes as JSON."""
    holders: int = 0
    """How many hold it: the list, and held turns that continue from it."""

    def __post_init__(self) -> None:
        self.size = len(dumps(self.response)) + len(dumps(self.input))

    @property
    def id(self) -> str:
        """The response's id."""
        return str(self.response["id"])

    @property
    def chain(self) -> Iterator[Turn]:
        """This turn and those before it, the newest first."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.previous

    @property
    def context(self) -> list[Item]:
        """All items that the response was made from: those of the turns before, and its own input."""
        _, *before = self.chain
        return [item for turn in reversed(before) for item in (*turn.input, *turn.output)] + list(self.input)

    @property
    def conversation(self) -> list[Item]:
        """All items that a turn after this one continues from."""
        return [*self.context, *self.output]


@dataclass(slots=True)
class _Shelf:
    """What is kept for one owner."""

    turns: OrderedDict[str, Turn] = field(default_factory=OrderedDict)
    """By id, the least recently used first."""
    bytes: int = 0


class Turns:
    """At most `most` responses of `most_bytes` in all, counted as JSON. Owned by the event loop.

    A turn that is no longer listed counts as long as listed ones continue from it.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._shelves: dict[str, _Shelf] = {}

    def __len__(self) -> int:
        return sum([len(shelf.turns) for shelf in self._shelves.values()])

    @property
    def bytes(self) -> int:
        """What all turns take."""
        return sum([shelf.bytes for shelf in self._shelves.values()])

    def find(self, owner: str, id: str, param: str | None = None) -> Turn:
        """Return the turn of this id, which is now the most recently used; raise ApiError 404 if the owner has none."""
        shelf = self._shelves.get(owner)
        if shelf is None or id not in shelf.turns:
            what = "Previous response" if param else "Response"
            code = "previous_response_not_found" if param else "response_not_found"
            raise invalid_request(f"{what} with id '{shorten(id)}' not found.", param=param, code=code, status=404)
        shelf.turns.move_to_end(id)
        return shelf.turns[id]

    def keep(self, turn: Turn) -> None:
        """List a turn, and forget turns until the limits are met: this one, if nothing else would free memory.

        Nothing makes way for a turn that is too large with those before it.
        """
        chain = set(turn.chain)
        if sum([one.size for one in chain]) > self._most_bytes:
            return
        shelf = self._shelves.setdefault(turn.owner, _Shelf())
        shelf.turns[turn.id] = turn
        self._hold(turn, shelf)
        while len(self) > self._most:
            most = max(self._shelves.values(), key=_number)
            self.forget(next(iter(most.turns.values())))
        while self.bytes > self._most_bytes:  # forgetting only a part of the chain would free nothing
            most = max(self._shelves.values(), key=_bytes)
            self.forget(next((one for one in most.turns.values() if one not in chain), turn))

    def forget(self, turn: Turn) -> None:
        """Take a turn off the list; its memory is freed when no held turn continues from it."""
        shelf = self._shelves[turn.owner]
        del shelf.turns[turn.id]
        for held in turn.chain:
            held.holders -= 1
            if held.holders:
                break
            shelf.bytes -= held.size
        if not shelf.turns:
            del self._shelves[turn.owner]

    def _hold(self, turn: Turn, shelf: _Shelf) -> None:
        for held in turn.chain:
            held.holders += 1
            if held.holders > 1:
                return
            shelf.bytes += held.size


def _number(shelf: _Shelf) -> int:
    return len(shelf.turns)


def _bytes(shelf: _Shelf) -> int:
    return shelf.bytes

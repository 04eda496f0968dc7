"""Responses that later requests may continue from: kept in memory, the least recently used forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
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
    def context(self) -> list[Item]:
        """All items that the response was made from: those of the turns before, and its own input."""
        turns: list[Turn] = []
        turn = self.previous
        while turn is not None:
            turns.append(turn)
            turn = turn.previous
        return [item for turn in reversed(turns) for item in (*turn.input, *turn.output)] + list(self.input)

    @property
    def conversation(self) -> list[Item]:
        """All items that a turn after this one continues from."""
        return [*self.context, *self.output]


class Turns:
    """At most `most` responses of `most_bytes` in all, counted as JSON. Owned by the event loop.

    A turn that is no longer listed counts as long as listed ones continue from it.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._turns)

    def find(self, owner: str, id: str, param: str | None = None) -> Turn:
        """Return the turn of this id, which is now the most recently used; raise ApiError 404 if the owner has none."""
        turn = self._turns.get(id)
        if turn is None or turn.owner != owner:
            what = "Previous response" if param else "Response"
            code = "previous_response_not_found" if param else "response_not_found"
            raise invalid_request(f"{what} with id '{shorten(id)}' not found.", param=param, code=code, status=404)
        self._turns.move_to_end(id)
        return turn

    def keep(self, turn: Turn) -> None:
        """List a turn, and forget turns until the limits are met, possibly this one too."""
        self._turns[turn.id] = turn
        self._hold(turn)
        while self._turns and (len(self._turns) > self._most or self.bytes > self._most_bytes):
            self.forget(next(iter(self._turns.values())))

    def forget(self, turn: Turn) -> None:
        """Take a turn off the list; its memory is freed when no held turn continues from it."""
        del self._turns[turn.id]
        held: Turn | None = turn
        while held is not None:
            held.holders -= 1
            if held.holders:
                return
            self.bytes -= held.size
            held = held.previous

    def _hold(self, turn: Turn) -> None:
        held: Turn | None = turn
        while held is not None:
            held.holders += 1
            if held.holders > 1:
                return
            self.bytes += held.size
            held = held.previous

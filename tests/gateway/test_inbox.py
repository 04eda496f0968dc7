"""The inbox: what is dealt with at the end of a turn, and what the taker is woken for."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.choices.events import Event, LegEnded
from nproxy.gateway.inbox import Deal, Inbox

FIRST, SECOND, THIRD = LegEnded(1), LegEnded(2), LegEnded(3)


class Dealer:
    """Deals with what it is given, but for `left`, and notes it."""

    def __init__(self, left: Event | None = None) -> None:
        self.left = left
        self.given: list[list[Event]] = []

    def deal(self, events: list[Event]) -> bool:
        self.given.append(events)
        return self.left not in events


async def waiting(inbox: Inbox, deal: Deal) -> asyncio.Task[list[Event]]:
    taker = asyncio.create_task(inbox.take(deal))
    await asyncio.sleep(0)
    return taker


async def turn() -> None:
    """What is to be done at the end of this turn is done."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_comes_in_one_turn_is_dealt_with_together_and_wakes_nobody() -> None:
    dealer = Dealer()
    inbox = Inbox()
    taker = await waiting(inbox, dealer.deal)
    inbox.put_now([FIRST])
    inbox.put([SECOND])
    assert not dealer.given
    await turn()
    inbox.put_now([THIRD])
    await turn()
    assert dealer.given == [[FIRST, SECOND], [THIRD]]
    assert not taker.done()
    taker.cancel()


async def test_the_taker_is_woken_where_something_is_left_and_takes_what_came_since() -> None:
    dealer = Dealer(left=SECOND)
    inbox = Inbox()
    taker = await waiting(inbox, dealer.deal)
    inbox.put_now([FIRST, SECOND])
    asyncio.get_running_loop().call_soon(inbox.put_now, [THIRD])
    assert await taker == [THIRD]
    assert dealer.given == [[FIRST, SECOND]]


async def test_who_comes_to_what_is_there_takes_it_all() -> None:
    dealer = Dealer()
    inbox = Inbox()
    inbox.put_now([FIRST])
    inbox.put([SECOND])
    assert await inbox.take(dealer.deal) == [FIRST, SECOND]
    assert not dealer.given


async def test_a_fault_is_the_takers() -> None:
    def deal(events: list[Event]) -> bool:
        raise ValueError("of the conduct")

    inbox = Inbox()
    taker = await waiting(inbox, deal)
    inbox.put_now([FIRST])
    with pytest.raises(ValueError, match="of the conduct"):
        await taker


async def test_a_taker_that_has_left_is_given_nothing() -> None:
    dealer = Dealer()
    inbox = Inbox()
    taker = await waiting(inbox, dealer.deal)
    inbox.put_now([FIRST])
    taker.cancel()
    await turn()
    assert not dealer.given
    assert await inbox.take(dealer.deal) == [FIRST]


@pytest.mark.parametrize("takes", [True, False])
async def test_who_fills_it_waits_until_it_is_emptied(takes: bool) -> None:
    dealer = Dealer()
    inbox = Inbox(most=2)
    if not takes:
        taker = await waiting(inbox, dealer.deal)
    assert inbox.put([FIRST]) is None
    room = inbox.put([SECOND])
    assert room is not None and inbox.put([THIRD]) is room
    if takes:
        assert await inbox.take(dealer.deal) == [FIRST, SECOND, THIRD]
    await turn()
    assert room.done() and inbox.put([FIRST]) is None
    if not takes:
        taker.cancel()

"""The queues of an upstream's accounts: made when they are needed, and forgotten when they are many and idle."""

from __future__ import annotations

from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.overload.peer_workers import PeerNews
from nproxy.upstreams.overload.queues import MOST_ACCOUNTS, OverloadQueues


def queues() -> OverloadQueues:
    return OverloadQueues(lambda: 0.5, lambda: 1000.0, lambda some, model: False, lambda: 10.0)


def test_of_many_accounts_those_with_calls_are_kept() -> None:
    of = queues()
    busy = of.of(("m", "busy"))
    busy.calls.begin(CallAttempt(CallGroup("m"), 0))
    idle = of.of(("m", "idle"))
    for number in range(MOST_ACCOUNTS):
        of.of(("m", str(number)))
    assert len(of) <= MOST_ACCOUNTS
    assert of.of(("m", "busy")) is busy and of.of(("m", "idle")) is not idle


def test_accounts_share_room_with_other_workers_whether_they_came_before_or_after() -> None:
    of, told = queues(), list[PeerNews]()
    before = of.of(("m", "before"))
    of.share_room("u", "w0", told.append)
    after = of.of(("m", "after"))
    before.announcements.waiting_changed()
    after.announcements.waiting_changed()
    assert told == [PeerNews("u", "m", caller, "waits_no_more", "w0", requests=0) for caller in ("before", "after")]


def test_news_are_the_accounts_alone() -> None:
    of = queues()
    of.share_room("u", "w0", lambda news: None)
    of.take_news(PeerNews("u", "m", "one", "waits", "w1"))
    assert [*of.shared.waiting] == [of.of(("m", "one"))]
    of.remind()
    assert [*of.shared.waiting] == [of.of(("m", "one"))]

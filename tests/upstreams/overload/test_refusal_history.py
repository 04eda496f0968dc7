"""What a refusal means, from what is kept of the ones before."""

from __future__ import annotations

from weakref import ref

from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.overload.refusal_history import RefusalHistory


def test_nothing_is_kept_of_a_request_that_was_refused_last() -> None:
    """Such a request may be the last of its account, and a group holds the client's headers."""
    history, group = RefusalHistory(), CallGroup()
    history.note_refused(CallAttempt(group, 0), 1)
    history.note_refused(CallAttempt(group, 1), 2)
    assert not history.several
    gone = ref(group)
    del group
    assert gone() is None
    history.note_refused(CallAttempt(CallGroup(), 0), 3)
    assert history.several, "they were of two requests"

"""What a refusal means: missing capacity, another fault of the server, or something that request asks for. Pure.

A 503 may have any cause, and a 429 may be about the tokens that one request wants and no other does. Treated as missing
capacity, such a refusal would hold up all requests. What happens to the other requests tells the cases apart.
"""

from __future__ import annotations

from math import inf
from weakref import ref

from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.overload.release_delay import RELEASE_DELAYS

MIN_REFUSALS_TO_SUSPECT = 2
"""Fewer refusals after admission are bad luck; with more, the request itself may be the reason."""
SUSPECT_FOR_REFUSALS = 8
"""After a finding, this many further refusals are blamed on the request without another comparison."""
MOST_HANDED_ON_PER_RELEASE = 3
"""This many request-specific refusals in a row hand the same freed slot on to another request."""
MOST_YIELDS, MOST_SUSPECT_YIELDS = 3, 64
"""How many others a refused request lets go first: one that may be unlucky, one that asks for too much."""
GIVE_UP_AFTER_FINDINGS = 10
"""After this many findings, a request is told that it was refused."""


class RefusalHistory:
    """The refusals of one account, and the answers they are compared with.

    in_a_row: since a call ended that was not refused. several: they were of several requests.
    """

    __slots__ = ("_last_group", "_newest_answered", "in_a_row", "several")

    def __init__(self) -> None:
        self.in_a_row = 0
        self.several = False
        self._last_group: ref[CallGroup] | None = None  # no more: a group holds its request
        self._newest_answered = [0] * (len(RELEASE_DELAYS) + 1)  # numbers of calls, by delay rank

    def note_end(self) -> None:
        """A call ended that was not refused."""
        self.in_a_row, self._last_group, self.several = 0, None, False

    def note_answer(self, attempt: CallAttempt) -> None:
        """A call was answered, perhaps with an error."""
        rank = attempt.delay_rank
        self._newest_answered[rank] = max(self._newest_answered[rank], attempt.number)

    def note_refused(self, attempt: CallAttempt, begun: int) -> bool:
        """A call was refused. Returns whether that is for what its request asks for.

        begun: how many calls of the account have begun.
        """
        self.in_a_row += 1
        self.several = self.several or (self._last_group is not None and self._last_group() is not attempt.group)
        self._last_group = ref(attempt.group)
        return self._is_specific(attempt, begun)

    def _is_specific(self, attempt: CallAttempt, begun: int) -> bool:
        """Whether the request is refused again and again while others are answered, and nothing of it is.

        It is compared only with calls that were made no later after a release than this one, and since it was last
        compared.
        """
        group, stats = attempt.group, attempt.group.queue_stats
        if not attempt.admitted_by or stats is None or group.served_at > -inf or group.others_in_flight(attempt.leg):
            return False
        probe = attempt.admitted_by == "probe"
        stats.probe_refusals += probe
        stats.release_refusals += not probe
        suspect = (stats.probe_refusals if probe else stats.release_refusals) > MIN_REFUSALS_TO_SUSPECT
        if suspect and max(self._newest_answered[: attempt.delay_rank + 1]) > stats.compared_at:
            stats.specific_findings += 1
            stats.specific_refusals_left = SUSPECT_FOR_REFUSALS
            stats.compared_at = begun
        stats.compared_at = stats.compared_at or begun
        specific = stats.specific_refusals_left > 0 and self.in_a_row <= MOST_HANDED_ON_PER_RELEASE
        stats.specific_refusals_left = max(stats.specific_refusals_left - 1, 0)
        if stats.specific_findings:
            yields = min(2**stats.specific_findings, MOST_SUSPECT_YIELDS)
        else:
            yields = min(stats.release_refusals - 1, MOST_YIELDS)
        stats.yields_until = begun + yields
        return specific

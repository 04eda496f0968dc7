"""Whether the upstream ends a stream as soon as another call comes, as far as one request shows it."""

from __future__ import annotations

from nproxy.choices.capability import Capability
from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.lessons import OneAtATime, Verdict
from nproxy.choices.roster import LegProgress

INTERRUPTED = Failure(
    FailureKind.INTERRUPTED,
    "The upstream ended the answer before it was complete, while it had other calls. If it supports only one call at a "
    "time, set `parallel: 1` in its configuration; `nproxy probe` finds out.",
)


class Interruptions:
    """Watches how the streams of one request end.

    seen: a stream was interrupted. From then on no leg is called beside another.
    """

    def __init__(self, capability: Capability) -> None:
        self.seen = False
        self._on_trial = capability.alone_on_trial

    def broke_off(self, run: LegProgress, *, beside: bool) -> OneAtATime | None:
        """Note a stream that sent `[DONE]` before anything was finished; return the lesson. beside: as in LegEnded."""
        if beside:
            self.seen = self._on_trial = True
            return OneAtATime("suspected")
        return self._verdict(run, "refuted")

    def came_to_its_end(self, run: LegProgress) -> OneAtATime | None:
        """Note a stream that was whole; return the lesson."""
        return self._verdict(run, "confirmed")

    def _verdict(self, run: LegProgress, verdict: Verdict) -> OneAtATime | None:
        if not (self._on_trial and run.alone):
            return None
        self._on_trial = False
        return OneAtATime(verdict)

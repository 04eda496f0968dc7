"""The states of a leg, and what moves it from one to another: all of it is the table in this file.

    WAITING   waits to be called: the upstream takes only so many calls at once, or the leg is held back
    CALLED    the call is open and has sent no event; another attempt can make a failure good
    SPEAKING  its first event has come; a failure now is final, unless the client has read nothing of it yet (then it
              begins anew) or it can be resumed
    PAUSED    it failed, or stands in for one that did, and will be called when its timer fires
    DONE      it ended, and its choices are finished or given to other legs
    FAILED    it failed for good
    CANCELLED nproxy ended it

Only CALLED and SPEAKING hold a call. The last three are final.
"""

from __future__ import annotations

from enum import Enum, auto


class LegState(Enum):
    """Where a leg stands."""

    # Members are singletons, and the table is used at every step: Enum's own hash is that of the name.
    __hash__ = object.__hash__

    WAITING = auto()
    CALLED = auto()
    SPEAKING = auto()
    PAUSED = auto()
    DONE = auto()
    FAILED = auto()
    CANCELLED = auto()


class Signal(Enum):
    """What happens to a leg."""

    __hash__ = object.__hash__  # as above

    OPEN = auto()  # its call is made
    SPEAK = auto()  # its first event has come
    PAUSE = auto()  # it failed before that, and another attempt is granted; or it stands in for a leg that failed
    RESTART = auto()  # it broke off, and another call begins anew, or resumes it
    RESUME = auto()  # the pause is over
    END = auto()  # its answer is whole
    FAIL = auto()  # it failed, and nothing can make that good
    CANCEL = auto()  # it is not needed any more


_W, _C, _S, _P = LegState.WAITING, LegState.CALLED, LegState.SPEAKING, LegState.PAUSED

TRANSITIONS: dict[tuple[LegState, Signal], LegState] = {
    (_W, Signal.OPEN): LegState.CALLED,
    (_W, Signal.PAUSE): LegState.PAUSED,
    (_C, Signal.SPEAK): LegState.SPEAKING,
    (_C, Signal.PAUSE): LegState.PAUSED,
    (_S, Signal.RESTART): _P,
    (_P, Signal.RESUME): LegState.WAITING,
    (_C, Signal.END): LegState.DONE,
    (_S, Signal.END): LegState.DONE,
    (_C, Signal.FAIL): LegState.FAILED,
    (_S, Signal.FAIL): LegState.FAILED,
    (_W, Signal.CANCEL): LegState.CANCELLED,
    (_C, Signal.CANCEL): LegState.CANCELLED,
    (_S, Signal.CANCEL): LegState.CANCELLED,
    (_P, Signal.CANCEL): LegState.CANCELLED,
}
"""The state after a signal. A signal that a state does not allow is an error in the conduct: KeyError."""

IDLE = frozenset({LegState.WAITING, LegState.PAUSED})
HOLDS_A_CALL = frozenset({LegState.CALLED, LegState.SPEAKING})
FINAL = frozenset({LegState.DONE, LegState.FAILED, LegState.CANCELLED})

"""The duties of a container's first process, which has the id 1.

For it the kernel drops signals without a handler: SIGTERM does nothing while an engine's model is fetched. And it
inherits processes whose parent has ended, as those of a killed engine; they stay as zombies until it waits for them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType

REAP_SECONDS = 30.0
"""A process that has ended, and that nobody has waited for in so many seconds, was inherited."""


def take_over() -> None:
    """Do these duties if this is the first process. Handlers of SIGTERM that are set later replace this one."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)
        threading.Thread(target=reap, args=(REAP_SECONDS,), name="nproxy-reap", daemon=True).start()


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def reap(seconds: float) -> None:
    """Wait for inherited processes that have ended, for ever. seconds: how long those that started them have for it."""
    before: int | None = None
    while True:
        time.sleep(seconds)
        ended = _ended()
        if ended is not None and ended == before:
            os.waitpid(ended, os.WNOHANG)
            ended = _ended()
        before = ended


def _ended() -> int | None:
    """Return a child that has ended and that nobody has waited for; None if there is none."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid

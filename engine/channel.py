"""The server's end of the channel to the core process. asyncio, no torch.

Both ends are the same code of the same installation, joined by a private socket pair that no third
party can reach; so messages are pickled frozen types (messages.py), each behind its length.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from engine.config import EngineConfig
from engine.messages import Abort, Add, Ready, StepDone


class CoreClient:
    """The core process as its server sees it: messages in, one StepDone per step out.

    Owned by one event loop and one iterating task. `ready` says what was loaded.
    """

    ready: Ready

    @classmethod
    async def start(cls, config: EngineConfig) -> CoreClient:
        """Start the core process and wait until the model is loaded; raises CoreFailed with the reason."""
        raise NotImplementedError

    def add(self, message: Add) -> None:
        """Send a new group; returns at once. After the core has failed this does nothing: the iteration raises."""
        raise NotImplementedError

    def abort(self, message: Abort) -> None:
        """Send the end of choices; tokens that were already under way may still arrive."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[StepDone]:
        """Every step's outcome in order; ends after close(), raises CoreFailed when the core is gone."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the core process and wait for it; may be called twice."""
        raise NotImplementedError

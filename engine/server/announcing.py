"""Registers the server with a gateway, renews the registration, and removes it at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import ClientError, ClientSession, ClientTimeout

from engine.options import Registration
from nproxy.openai.errors import wrap_foreign
from nproxy.openai.jsonvalue import loads

LEASE_SECONDS = 30.0
AGAIN_SECONDS = 2.0
"""Between two checks whether the server works, and before another attempt after one that failed."""
CALL_SECONDS = 5.0
FAREWELL_SECONDS = 2.0
_MOST_BYTES = 64 << 10

log = logging.getLogger("engine.server")


class Refused(Exception):
    """The gateway refused the registration; the message is its reason."""


_UNREACHABLE = (ClientError, OSError, TimeoutError, Refused, ValueError, RuntimeError)
"""How a call to the gateway fails; RuntimeError: no thread can be started to look up its name."""


class Announcer:
    """Registers one server. works: whether it serves requests now; while it does not, its lease is left to expire."""

    def __init__(self, registration: Registration, models: Sequence[str], works: Callable[[], bool]) -> None:
        self._registration = registration
        self._models = list(models)
        self._works = works
        self._logged: str | None = None  # the message that was logged last

    @asynccontextmanager
    async def announced(self) -> AsyncIterator[None]:
        """Keep the server registered while the block runs, and remove it afterwards."""
        token = self._registration.token
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with ClientSession(headers=headers, timeout=ClientTimeout(total=CALL_SECONDS)) as session:
            try:
                async with asyncio.TaskGroup() as beside:
                    beating = beside.create_task(self._beat(session))
                    try:
                        yield
                    finally:
                        beating.cancel()
            finally:
                await self._leave(session)

    async def _beat(self, session: ClientSession) -> None:
        while True:
            pause = await self._announce(session) if self._works() else AGAIN_SECONDS
            await asyncio.sleep(pause)

    async def _announce(self, session: ClientSession) -> float:
        """Register once; return the seconds until the next time."""
        there = {"url": self._registration.advertise, "models": self._models, "lease_seconds": LEASE_SECONDS}
        try:
            async with session.post(self._registration.endpoint, json=there, allow_redirects=False) as answer:
                renew = _renew_seconds(answer.status, answer.content_type, await answer.content.read(_MOST_BYTES))
        except _UNREACHABLE as error:
            self._say(logging.WARNING, f"registration with the gateway failed: {_reason(error)}")
            return AGAIN_SECONDS
        self._say(logging.INFO, f"registered as {self._registration.advertise}")
        return renew

    async def _leave(self, session: ClientSession) -> None:
        """Remove the registration, so that no more calls come; if the gateway does not get the request, the
        lease expires.
        """
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                where = {"url": self._registration.advertise}
                async with session.delete(self._registration.endpoint, params=where, allow_redirects=False):
                    pass
        except _UNREACHABLE as error:
            self._say(logging.WARNING, f"deregistration from the gateway failed: {_reason(error)}")

    def _say(self, level: int, what: str) -> None:
        """Log a message unless it was the last one logged."""
        if what != self._logged:
            self._logged = what
            log.log(level, "%s", what)


def _reason(error: Exception) -> str:
    """Return what an exception says, or its name if it says nothing, as TimeoutError."""
    return str(error) or type(error).__name__


def _renew_seconds(status: int, content_type: str, body: bytes) -> float:
    """Return after how many seconds the gateway wants the next registration, from its answer.

    Raises Refused, ValueError.
    """
    if status >= 300:
        raise Refused(wrap_foreign(status, content_type, body).message)
    match loads(body):
        case {"renew_seconds": int() | float() as seconds}:
            return max(seconds, 0.1)
        case _:
            raise Refused("the answer is not that of a gateway")

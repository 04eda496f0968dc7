"""Documents that nproxy requests from an upstream's replicas for its own use: model lists, health checks, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from math import inf

from nproxy.choices.failure_table import LOOP_DETECTED
from nproxy.concurrency.tasks import first_wanted
from nproxy.upstreams.client import Client
from nproxy.upstreams.forward import ForwardError, fetch
from nproxy.upstreams.gate import Gate
from nproxy.upstreams.headers import ApiKey, upward
from nproxy.upstreams.replicas import Replica

ANSWERED_SECONDS = 1.0
"""For how long it is believed that a replica answers."""
LIST_SECONDS = 3.0
APART_SECONDS = 0.3
"""After so many seconds without an answer the next replica is asked, too. If all were asked at once, servers with
different lists would take turns, and healthy ones would be asked for nothing.
"""
LARGEST = 4 << 20
"""Most bytes of a document that are read."""
_NO_HEADERS: Mapping[str, str] = {}


class Documents:
    """Small documents of the replicas behind a gate, requested with the upstream's own key if it has one."""

    def __init__(self, client: Client, gate: Gate, api_key: ApiKey) -> None:
        self._client = client
        self._gate = gate
        self._api_key = api_key
        self._asking = asyncio.Lock()
        self._questions = 0  # that were answered, by a replica or by its silence
        self._silent = ""  # the last answer
        self._answered_until = -inf

    async def get(self, replica: Replica, path: str, seconds: float) -> tuple[int, bytes]:
        """Request a document from one replica; return its status and body. Raises ForwardError."""
        headers = upward(_NO_HEADERS, self._api_key)
        headers["Accept-Encoding"] = "identity"
        return await fetch(self._client, replica, path, headers, seconds=seconds, limit=LARGEST)

    async def first(self, path: str, seconds: float) -> bytes:
        """The first replica's document, such as `/metrics`; empty if it does not come."""
        try:
            status, body = await self.get(self._gate.replicas[0], path, seconds)
        except ForwardError:
            return b""
        return body if status == 200 else b""

    async def models(self) -> tuple[int, bytes] | None:
        """Status and body of the first model list that comes, from the replicas that have not announced their models.

        If no replica answers with 200, the last answer; None if none answers.
        """
        last: tuple[int, bytes] | None = None

        async def ask(replica: Replica) -> bool:
            nonlocal last
            with suppress(ForwardError):
                last = await self._models_of(replica)
                return last[0] == 200
            return False

        asked = [partial(ask, replica) for replica in self._gate.in_order() if replica.models is None]
        await first_wanted(asked, wanted=bool, apart=APART_SECONDS)
        return last

    async def why_silent(self) -> str:
        """Why no replica answers; "" if one does, even with an error. One that leads back to this gateway does not.

        Whoever asks meanwhile is told the same. If one answers, it is not asked again for a while: /ready needs no key,
        and each question is a call.
        """
        questions = self._questions
        async with self._asking:
            if self._questions == questions and time.monotonic() >= self._answered_until:
                self._silent = await self._why_silent()
                self._questions += 1
                if self._silent == "":
                    self._answered_until = time.monotonic() + ANSWERED_SECONDS
            return self._silent

    async def _why_silent(self) -> str:
        async def ask(replica: Replica) -> str:
            try:
                status, _ = await self._models_of(replica)
            except ForwardError as error:
                return error.failure.logged
            return "It leads back to this gateway." if status == LOOP_DETECTED else ""

        asked = [partial(ask, replica) for replica in self._gate.replicas]
        why = await first_wanted(asked, wanted=lambda why: not why, apart=APART_SECONDS)
        return "It has no replicas." if why is None else why

    async def _models_of(self, replica: Replica) -> tuple[int, bytes]:
        return await self.get(replica, "/v1/models", LIST_SECONDS)

"""Requests over HTTP: one out, one record back, whatever becomes of it. All of aiohttp's exceptions end here.

aiohttp and not httpx: a chunk of a stream costs it about half the processor time, and the client must not be the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import aiohttp

from nproxy.cli.bench.answer import Answer, Record
from nproxy.cli.bench.asking import Ask
from nproxy.cli.bench.failed import BenchFailed
from nproxy.config import Replica
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import wrap_foreign
from nproxy.openai.jsonvalue import loads

KEEPALIVE_SECONDS = 4.0
"""Below the 5 s after which uvicorn closes an idle connection: else requests would meet one that is just closing."""
AFTER_DONE_SECONDS = 1.0
"""How long after `[DONE]` a server may take to end its answer before the connection is given up instead of reused."""
ERROR_BYTES = 1 << 20

clock = time.perf_counter
"""uvloop's own time is that of the loop's last turn, in whole milliseconds."""

_FOREIGN = (aiohttp.ClientError, OSError, ValueError)
"""What a request or a read may raise that means that there is no answer; anything else is a fault of our own."""


@dataclass(frozen=True, slots=True)
class Client:
    """Asks one server. seconds: that an answer may take. key: blotted out of what comes back."""

    base: str
    dialect: Dialect
    seconds: float
    key: str | None
    _http: aiohttp.ClientSession

    async def ask(self, ask: Ask, due: float | None = None) -> Record:
        """Send a request and read its answer to the end. due: when it should have been sent; None: now."""
        sent = clock()
        answer = Answer(self.dialect, ask.choices)
        try:
            async with asyncio.timeout(self.seconds) as limit:
                await self._exchange(ask, answer, limit)
        except TimeoutError:
            answer.fail("timeout", f"no end within {self.seconds:g} s")
        except aiohttp.ClientConnectorError as error:
            answer.fail("connect", _reason(error))
        except aiohttp.ClientPayloadError:
            answer.fail("cut", "the connection ended before the answer")
        except _FOREIGN as error:
            answer.fail("broken", self._without_key(_reason(error)))
        return answer.record(sent if due is None else due, sent, clock())

    async def first_model(self) -> str:
        """The first model that the server lists. Raises BenchFailed."""
        try:
            async with asyncio.timeout(self.seconds), self._http.get(f"{self.base}/models") as response:
                body = await response.content.read(ERROR_BYTES)
                status, kind = response.status, response.content_type
        except TimeoutError:
            raise BenchFailed(f"no answer within {self.seconds:g} s") from None
        except _FOREIGN as error:
            raise BenchFailed(f"cannot be reached: {self._without_key(_reason(error))}") from error
        if status != 200:
            said = self._without_key(wrap_foreign(status, kind, body).message)
            raise BenchFailed(f"no list of models, name one with --model: {status}: {said}")
        with contextlib.suppress(ValueError):
            match loads(body):
                case {"data": [{"id": str(name)}, *_]}:
                    return name
        raise BenchFailed("it lists no models; name one with --model")

    async def _exchange(self, ask: Ask, answer: Answer, limit: asyncio.Timeout) -> None:
        headers = {"content-type": "application/json"}
        async with self._http.post(f"{self.base}/{self.dialect}", data=ask.body, headers=headers) as response:
            if response.status != 200:
                body = await response.content.read(ERROR_BYTES)
                answer.refuse(response.status, response.content_type, self._blotted(body))
            elif response.content_type == "text/event-stream":
                async for data in response.content.iter_any():
                    answer.feed(data, clock())
                    if answer.failure is not None:
                        return
                    if answer.done:
                        limit.reschedule(asyncio.get_running_loop().time() + AFTER_DONE_SECONDS)
            else:
                body = await response.read()
                answer.whole(self._blotted(body), clock())

    def _blotted(self, body: bytes) -> bytes:
        return body.replace(self.key.encode(), b"***") if self.key else body

    def _without_key(self, words: str) -> str:
        return words.replace(self.key, "***") if self.key else words


@contextlib.asynccontextmanager
async def opened(replica: Replica, key: str | None, dialect: Dialect, seconds: float) -> AsyncIterator[Client]:
    """A client of one server, asked directly, whatever proxies the environment names, on any number of connections."""
    headers: Mapping[str, str] = {
        "accept-encoding": "identity",
        **({"authorization": f"Bearer {key}"} if key else {}),
    }
    connector: aiohttp.BaseConnector = (
        aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
        if replica.socket is None
        else aiohttp.UnixConnector(str(replica.socket), limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
    )
    async with aiohttp.ClientSession(
        connector=connector,
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        read_bufsize=1 << 20,
    ) as http:
        yield Client(replica.url, dialect, seconds, key, http)


def _reason(error: BaseException) -> str:
    """What went wrong, in the system's words where it has some: asyncio puts its own in their place."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno in errno.errorcode:
        return os.strerror(error.errno or 0).lower()
    return str(getattr(error, "strerror", None) or error or type(error).__name__).lower()

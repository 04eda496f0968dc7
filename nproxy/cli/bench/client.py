"""Sends requests over HTTP; each returns a record, whatever happens. All of aiohttp's exceptions are handled here.

aiohttp is used rather than httpx: it needs about half the CPU time for a chunk of a stream, and the client must not be
the bottleneck.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

from nproxy.cli.bench.answer import Answer, Record
from nproxy.cli.bench.asking import Ask
from nproxy.cli.bench.failed import BenchFailed
from nproxy.cli.model_list import models_in, no_list
from nproxy.cli.printable import printable
from nproxy.cli.reasons import ENDED_EARLY, NOT_HTTP, reason
from nproxy.cli.target import Target
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import wrap_foreign

KEEPALIVE_SECONDS = 4.0
"""Less than the 5 s after which uvicorn closes an idle connection: otherwise requests would meet a closing one."""
AFTER_DONE_SECONDS = 1.0
"""How long after `[DONE]` a server may take to end its answer; then the connection is closed instead of reused."""
ERROR_BYTES = 1 << 20
LARGEST_LIST = 1 << 24
"""Maximum size in bytes of a list of models; an aggregator of many providers lists some thousand."""

clock = time.perf_counter
"""uvloop's own time is that of the loop's last iteration, in whole milliseconds."""

_FOREIGN = (aiohttp.ClientError, OSError, ValueError)
"""Exceptions of a request or a read that mean that there is no answer; any other is a bug of this program."""


@dataclass(frozen=True, slots=True)
class Client:
    """Asks one server, and removes its key from what it says of failures. seconds: the limit for one answer."""

    target: Target
    dialect: Dialect
    seconds: float
    _http: aiohttp.ClientSession

    async def ask(self, ask: Ask, due: float | None = None) -> Record:
        """Send a request and read its answer to the end. due: when it should have been sent; None: now."""
        sent = clock()
        answer = Answer(self.dialect, ask.choices, self.target.without_key)
        try:
            async with asyncio.timeout(self.seconds) as limit:
                await self._exchange(ask, answer, limit)
        except TimeoutError:
            answer.fail("timeout", f"not complete within {self.seconds:g} s")
        except aiohttp.ClientConnectorError as error:
            answer.fail("connect", reason(error))
        except aiohttp.ClientPayloadError:
            answer.fail("cut", ENDED_EARLY)
        except _FOREIGN as error:
            answer.fail("broken", _why(error))
        return answer.record(sent if due is None else due, sent, clock())

    async def first_model(self) -> str:
        """Return the first model that the server lists. Raises BenchFailed."""
        address = f"{self.target.url}/models"
        try:
            async with asyncio.timeout(self.seconds), self._http.get(address, allow_redirects=False) as response:
                body = await _beginning(response, LARGEST_LIST)
                status, kind = response.status, response.content_type
        except TimeoutError:
            raise BenchFailed(f"no answer within {self.seconds:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise BenchFailed(f"cannot be reached: {reason(error)}") from error
        except _FOREIGN as error:
            raise BenchFailed(f"broke off: {_why(error)}") from error
        if status != 200:
            message = printable(self.target.without_key(wrap_foreign(status, kind, body).message), 400)
            if status in (401, 403):
                raise BenchFailed(f"it needs a key (--api-key): {status}: {message}")
            raise BenchFailed(f"the list of models cannot be read, name one with --model: {status}: {message}")
        listed = models_in(body)
        if listed is None:
            raise BenchFailed(f"it {no_list(kind)}")
        if not listed:
            raise BenchFailed("it lists no models; name one with --model")
        return listed[0].name

    async def _exchange(self, ask: Ask, answer: Answer, limit: asyncio.Timeout) -> None:
        headers = {"content-type": "application/json"}
        address = f"{self.target.url}/{self.dialect}"
        async with self._http.post(address, data=ask.body, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                body = await _beginning(response, ERROR_BYTES)
                answer.refuse(response.status, response.content_type, body)
            elif response.content_type == "text/event-stream":
                async for data in response.content.iter_any():
                    answer.feed(data, clock())
                    if answer.failure is not None:
                        return
                    if answer.done:
                        limit.reschedule(asyncio.get_running_loop().time() + AFTER_DONE_SECONDS)
            else:
                body = await response.read()
                answer.whole(body, clock())


@contextlib.asynccontextmanager
async def opened(target: Target, dialect: Dialect, seconds: float) -> AsyncIterator[Client]:
    """Open a client of one server, with any number of connections and regardless of proxies in the environment."""
    connector: aiohttp.BaseConnector = (
        aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
        if target.socket is None
        else aiohttp.UnixConnector(target.socket, limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
    )
    async with aiohttp.ClientSession(
        connector=connector,
        headers=target.headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        read_bufsize=1 << 20,
    ) as http:
        yield Client(target, dialect, seconds, http)


async def _beginning(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Read the body up to about `most` bytes; a single read would return only what has arrived so far."""
    body = bytearray()
    async for data in response.content.iter_any():
        body += data
        if len(body) >= most:
            break
    return bytes(body)


def _why(error: Exception) -> str:
    """Return why there is no answer, or why it ended early, after the server was reached."""
    match error:
        case aiohttp.ClientResponseError():
            return NOT_HTTP
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
            return ENDED_EARLY
        case _:
            return reason(error)

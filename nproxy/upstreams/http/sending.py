"""Request bodies on their way up, with regard to how fast they are taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from nproxy.upstreams.http.errors import HTTPError, LostError

SLICE_BYTES = 1 << 16


def slices(parts: Sequence[bytes]) -> Iterator[bytes | memoryview]:
    """Parts that other calls send too, 64 KiB at a time, so that no call holds a copy of its own."""
    for part in parts:
        if len(part) <= SLICE_BYTES:
            yield part
            continue
        view = memoryview(part)
        for start in range(0, len(part), SLICE_BYTES):
            yield view[start : start + SLICE_BYTES]


class Sink(Protocol):
    """Where a body goes, as far as it can still go there."""

    def write(self, data: bytes) -> None: ...

    async def writable(self) -> None: ...

    def sent(self) -> None: ...

    def fail(self, error: HTTPError) -> None: ...


class Upload:
    """A body that comes from elsewhere while it is sent. `run` beside the call, which may be answered before its end.

    size: how long its sender says that it is, None for one that is sent in chunks.
    """

    def __init__(self, data: AsyncIterator[bytes], size: int | None) -> None:
        self.size = size
        self._data = data
        self._begun: asyncio.Future[tuple[Sink, bytes]] = asyncio.get_running_loop().create_future()

    def begin(self, sink: Sink, head: bytes) -> None:
        """There is a connection for it. head: of the request, which leaves with the first of the body."""
        self._begun.set_result((sink, head))

    async def run(self) -> None:
        """Send it. Where it breaks off, or is not as long as was said, so does the call."""
        sink, head = await self._begun
        sent = 0
        try:
            async for data in self._data:
                if not data:
                    continue
                sent += len(data)
                if self.size is None:
                    sink.write(b"%b%x\r\n%b\r\n" % (head, len(data), data))
                elif sent <= self.size:
                    sink.write(head + data)
                else:
                    break
                head = b""
                await sink.writable()
            if self.size not in (None, sent):
                sink.fail(LostError())
                return
            sink.write(head + b"0\r\n\r\n" if self.size is None else head)
        except Exception:
            sink.fail(LostError())
            return
        sink.sent()

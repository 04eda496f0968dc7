"""Request bodies on their way to an upstream, sent only as fast as it takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from nproxy.upstreams.http.errors import HTTPError, UploadError

SLICE_BYTES = 1 << 16


def slices(parts: Sequence[bytes]) -> Iterator[bytes | memoryview]:
    """The parts, in pieces of at most 64 KiB. Calls share the parts, so that no call holds a copy of its own."""
    for part in parts:
        if len(part) <= SLICE_BYTES:
            yield part
            continue
        view = memoryview(part)
        for start in range(0, len(part), SLICE_BYTES):
            yield view[start : start + SLICE_BYTES]


class Sink(Protocol):
    """Where a body is sent, as long as that is possible; see Reply."""

    @property
    def reused(self) -> bool:
        """Whether the connection had carried a call before."""
        ...

    def write(self, data: bytes) -> None:
        """Send more of the body."""
        ...

    async def writable(self) -> None:
        """Wait until more can be sent. Raises LostError if the call is over."""
        ...

    def sent(self) -> None:
        """Note that the whole body is sent."""
        ...

    def fail(self, error: HTTPError) -> None:
        """Give up the call."""
        ...


class Upload:
    """A body that is received while it is sent. `run` runs beside the call, which may be answered before its end.

    size: its length as stated by the sender; None if it is sent in chunks. receiving: it waits for its sender, not for
    its receiver.
    """

    def __init__(self, data: AsyncIterator[bytes], size: int | None) -> None:
        self.size = size
        self.receiving = False
        self._data = data
        self._begun: asyncio.Future[tuple[Sink, bytes]] = asyncio.get_running_loop().create_future()

    def begin(self, sink: Sink, head: bytes) -> None:
        """A connection is there. head: of the request.

        It is sent together with the first part of the body; at once on a connection that was kept, which its server may
        close while no request has come.
        """
        self._begun.set_result((sink, head))

    async def run(self) -> None:
        """Send the body. If it breaks off, or is not as long as stated, the call fails."""
        sink, head = await self._begun
        if sink.reused:
            sink.write(head)
            head = b""
        sent, self.receiving = 0, True
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
                self.receiving = False
                await sink.writable()
                self.receiving = True
            self.receiving = False
            if self.size not in (None, sent):
                sink.fail(UploadError())
                return
            sink.write(head + b"0\r\n\r\n" if self.size is None else head)
        except Exception:
            sink.fail(UploadError())
            return
        sink.sent()

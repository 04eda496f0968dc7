"""A model hub on loopback that serves one repository, as far as huggingface_hub's snapshots need it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34


@dataclass(slots=True)
class Hub:
    """A running hub."""

    url: str
    """Its URL."""
    downloaded: list[str] = field(default_factory=list)
    """The names of the files that were downloaded."""
    cut: str = ""
    """The next download of this file ends after half of it."""
    held: str = ""
    """The second half of this file waits for `go_on`."""
    go_on: threading.Event = field(default_factory=threading.Event)
    resumed: list[int] = field(default_factory=list)
    """Where downloads began that did not begin at the first byte."""


@contextlib.contextmanager
def model_hub(repository: str, files: dict[str, bytes]) -> Iterator[Hub]:
    """Serve a repository with these files on a free port while the block runs; all other repositories are unknown."""
    hub = Hub("")
    described = {
        "id": repository,
        "modelId": repository,
        "sha": COMMIT,
        "private": False,
        "tags": [],
        "siblings": [{"rfilename": name} for name in files],
    }

    tree = [
        {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body, usedforsecurity=False).hexdigest()}
        for name, body in files.items()
    ]

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            api, file = f"/api/models/{repository}", self.path.removeprefix(f"/{repository}/resolve/{COMMIT}/")
            if self.path.startswith(f"{api}/tree/"):
                self._send(json.dumps(tree).encode())
            elif self.path.startswith(api):
                self._send(json.dumps(described).encode())
            elif file in files:
                if self.command == "GET":
                    hub.downloaded.append(file)
                self._file(file)
            else:
                self._send(b"{}", 404, error="RepoNotFound")

        def _file(self, name: str) -> None:
            """Send a file, from the requested byte on."""
            body = files[name]
            begins = int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            if begins:
                hub.resumed.append(begins)
            self._head(body, 206 if begins else 200, begins)
            if self.command != "GET":
                return
            half, cut = len(body) // 2, hub.cut == name
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body[begins : max(begins, half)])
                if cut:
                    hub.cut = ""
                    return
                if hub.held == name:
                    hub.go_on.wait(60)
                self.wfile.write(body[max(begins, half) :])

        def _send(self, body: bytes, status: int = 200, error: str = "") -> None:
            self._head(body, status, error=error)
            if self.command == "GET":
                self.wfile.write(body)

        def _head(self, body: bytes, status: int, begins: int = 0, error: str = "") -> None:
            self.send_response(status)
            etag = hashlib.sha1(body, usedforsecurity=False).hexdigest()
            headers = {
                "X-Repo-Commit": COMMIT,
                "ETag": f'"{etag}"',
                "X-Error-Code": error,
                "Content-Range": f"bytes {begins}-{len(body) - 1}/{len(body)}" if begins else "",
                "Content-Length": str(len(body) - begins),
            }
            for name, value in headers.items():
                if value:
                    self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            hub.go_on.set()
            server.shutdown()
            thread.join()

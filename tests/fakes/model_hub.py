"""A hub of models on loopback that serves one repository, as far as huggingface_hub's snapshots need it."""

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
    """A running hub: its URL, the names of the files that were downloaded from it, and the fault in force.

    cut: the next download of this file ends after half of it. resumed: where downloads began that were not to begin at
    the first byte.
    """

    url: str
    downloaded: list[str] = field(default_factory=list)
    cut: str = ""
    resumed: list[int] = field(default_factory=list)


@contextlib.contextmanager
def model_hub(repository: str, files: dict[str, bytes]) -> Iterator[Hub]:
    """Serve a repository with these files on a free port while the body runs; every other one is unknown."""
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
                self._send(b"{}", 404, **{"X-Error-Code": "RepoNotFound"})

        def _file(self, name: str) -> None:
            """Send a file, from the byte on that was asked for."""
            body = files[name]
            begins = int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            cut = self.command == "GET" and hub.cut == name
            if begins:
                hub.resumed.append(begins)
                ranged = {"Content-Range": f"bytes {begins}-{len(body) - 1}/{len(body)}"}
                self._send(body[begins:], 206, etag_of=body, cut=cut, **ranged)
            else:
                self._send(body, cut=cut)

        def _send(
            self, body: bytes, status: int = 200, *, etag_of: bytes | None = None, cut: bool = False, **headers: str
        ) -> None:
            self.send_response(status)
            etag = hashlib.sha1(body if etag_of is None else etag_of, usedforsecurity=False).hexdigest()
            for name, value in {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"', **headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if cut:
                hub.cut = ""
                self.close_connection = True
                body = body[: len(body) // 2]
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()

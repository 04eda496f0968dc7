"""A process that behaves towards its supervisor like an engine, and misbehaves if told to.

It appends its process id to --lives at each start, answers GET /health on the Unix socket, and ends when its standard
input does. `fail-first` ends before it is ready, `deaf` ignores SIGTERM, `parent` has a child process, whose id it also
writes to --lives. In its first life, `ill` answers 200 once, then 503.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path


class Health(BaseHTTPRequestHandler):
    statuses: Iterator[int] = itertools.repeat(200)

    def do_GET(self) -> None:
        status = next(self.statuses) if self.path == "/health" else 404
        body = b"unwell" * 100 if status == 503 else b""
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        with contextlib.suppress(BrokenPipeError):  # the client has not waited
            self.end_headers()
            self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds", required=True)
    parser.add_argument("--lives", type=Path, required=True)
    parser.add_argument("--behaviour", choices=("good", "fail-first", "deaf", "parent", "ill"), default="good")
    arguments = parser.parse_args()
    ids = [os.getpid()]
    if arguments.behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if arguments.behaviour == "parent":
        sleeper = [sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"]
        ids.append(subprocess.Popen(sleeper, stdin=subprocess.DEVNULL).pid)
    with arguments.lives.open("a") as lives:
        lives.writelines(f"{number}\n" for number in ids)
    if arguments.behaviour == "fail-first":
        sys.exit("engine: the model is not to my taste")
    if arguments.behaviour == "ill" and len(arguments.lives.read_text().split()) == 1:
        Health.statuses = itertools.chain([200], itertools.repeat(503))
    server = socketserver.ThreadingUnixStreamServer(arguments.uds, Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if arguments.behaviour == "deaf":
        signal.pause()
    while os.read(0, 4096):
        pass


if __name__ == "__main__":
    main()

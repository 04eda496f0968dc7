"""Sends the interview's questions over HTTP, one at a time, with limits on the time and size of each answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import httpx

from nproxy.cli import direct
from nproxy.cli.probe.interview import ProbeFailed
from nproxy.cli.probe.questions import Beside, Get, Leave, Post, Question, Reply, Together
from nproxy.cli.target import Target
from nproxy.concurrency.daemon_thread import start_daemon_thread

LARGEST = 16 * 1024 * 1024
"""Maximum size of an answer in bytes; a larger one counts as no answer."""
GIVE_UP_AFTER = 3
"""Number of questions in a row without any answer after which the server counts as gone."""
LONGEST_WAIT = 10.0
"""The longest wait in seconds that a 429 may ask for before the question is repeated."""

_BROKE_OFF = "broke off"


@dataclass(slots=True)
class Client:
    """Asks one server, and removes its key from what comes back. seconds: the limit for one answer."""

    target: Target
    seconds: float
    _http: httpx.Client
    _silent: int = field(default=0)

    def ask(self, question: Question) -> Reply:
        """Ask a question; repeat it once if the connection broke off or a 429 says when. Raises ProbeFailed."""
        reply = self._once(question)
        wait = _retry_after(reply) if reply.status == 429 else 0.0 if reply.failure.startswith(_BROKE_OFF) else None
        if wait is not None:
            time.sleep(wait)
            reply = self._once(question)
        self._silent = self._silent + 1 if reply.failure else 0
        if self._silent >= GIVE_UP_AFTER:
            raise ProbeFailed(f"it stopped answering: {reply.failure}")
        return reply

    def _once(self, question: Question) -> Reply:
        match question:
            case Get():
                time.sleep(question.after)
                return self._whole(self._http.build_request("GET", self._url(question.path, root=question.root)))
            case Post():
                return self._whole(self._post(question))
            case Leave():
                return self._leave(question)
            case Beside():
                return self._beside(question)
            case Together(posts, after):
                time.sleep(after)
                first, *others = self._at_once(posts)
                return replace(first, others=others)

    def _at_once(self, posts: Sequence[Post]) -> list[Reply]:
        """Ask in threads that the process does not wait for at its end: Ctrl-C must not wait for the answers."""
        asked = [start_daemon_thread(partial(self._once, post), "nproxy-probe") for post in posts]
        return [one.result() for one in asked]

    def _url(self, path: str, *, root: bool = False) -> str:
        base = self.target.url
        return (base.removesuffix("/v1") if root else base) + path

    def _post(self, post: Post) -> httpx.Request:
        return self._http.build_request("POST", self._url(post.path), json=post.body)

    def _whole(self, request: httpx.Request) -> Reply:
        began = time.monotonic()
        body = bytearray()
        try:
            response = self._http.send(request, stream=True)
            with contextlib.closing(response):
                for piece in response.iter_raw():
                    body += piece
                    if len(body) > LARGEST:
                        return Reply(0, failure="its answer is too large")
                    if time.monotonic() - began > self.seconds:
                        return Reply(0, failure=self._too_slow())
        except httpx.HTTPError as error:
            return Reply(0, failure=self._why(error))
        return self._reply(response, bytes(body), time.monotonic() - began)

    def _leave(self, question: Leave) -> Reply:
        began = time.monotonic()
        try:
            with contextlib.closing(self._http.send(self._post(question.post), stream=True)) as response:
                if response.status_code != 200:
                    return self._reply(response, b"", 0.0)
                for piece in response.iter_raw():
                    if b"data:" in piece:
                        return self._once(question.watch)
                    if time.monotonic() - began > self.seconds:
                        return Reply(0, failure=self._too_slow())
        except httpx.HTTPError as error:
            return Reply(0, failure=self._why(error))
        return Reply(0, failure="the stream held no event")

    def _beside(self, question: Beside) -> Reply:
        began = time.monotonic()
        body = bytearray()
        asked = False
        try:
            with contextlib.closing(self._http.send(self._post(question.post), stream=True)) as response:
                with contextlib.suppress(httpx.NetworkError, httpx.ProtocolError):
                    for piece in response.iter_raw():
                        body += piece
                        if b"data:" in body and not asked:
                            asked = True
                            self._once(question.other)
                        if time.monotonic() - began > 2 * self.seconds:  # for both
                            return Reply(0, failure=self._too_slow())
                return self._reply(response, bytes(body), time.monotonic() - began)
        except httpx.HTTPError as error:
            return Reply(0, failure=self._why(error))

    def _reply(self, response: httpx.Response, body: bytes, seconds: float) -> Reply:
        headers = {name.lower(): self.target.without_key(value) for name, value in response.headers.items()}
        return Reply(response.status_code, headers, self.target.blotted(body), seconds)

    def _too_slow(self) -> str:
        return f"no answer within {self.seconds:g} s"

    def _why(self, error: httpx.HTTPError) -> str:
        if isinstance(error, httpx.TimeoutException):
            return self._too_slow()
        if isinstance(error, httpx.ConnectError):
            return f"cannot be reached: {direct.why(error)}"
        return f"{_BROKE_OFF}: {direct.why(error)}"


@contextlib.contextmanager
def opened(target: Target, seconds: float) -> Iterator[Client]:
    """Open a client of one server."""
    with direct.asking(target, seconds) as http:
        yield Client(target, seconds, http)


def _retry_after(reply: Reply) -> float | None:
    try:
        wait = float(reply.headers.get("retry-after", ""))
    except ValueError:
        return None
    return wait if 0 <= wait <= LONGEST_WAIT else None

"""The server: the models that it lists, and its answer to a request, chunk by chunk."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import httpx

from nproxy.cli import direct
from nproxy.cli.chat.failed import ChatFailed
from nproxy.cli.chat.settings import DEFAULT_URL
from nproxy.cli.model_list import models_in, no_list
from nproxy.cli.printable import printable
from nproxy.cli.target import Target
from nproxy.openai.chunks import MalformedChunk, UpstreamChunk, chunk_of, parse_answer
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError, wrap_foreign
from nproxy.openai.in_band import error_in_band
from nproxy.openai.jsonvalue import JSON, dumps
from nproxy.openai.sse import SSEDecoder, SSEError, SSEEvent
from nproxy.openai.stream_reading import Mark, read_event

LARGEST = 64 * 1024 * 1024
"""Maximum size in bytes of an answer that is not a stream."""


class _Refused(ChatFailed):
    """The answer is an error."""


@dataclass(slots=True)
class Client:
    """Asks one server, and removes its key from what comes back. seconds: how long it may be silent."""

    target: Target
    seconds: float
    _http: httpx.Client

    def models(self) -> list[str]:
        """Return the ids of the models that it lists. Raises ChatFailed."""
        with self._answer("GET", "/models", None) as response:
            listed = models_in(self._whole(response))
            if listed is None:
                raise ChatFailed(f"{self.target} {no_list(response.headers.get('content-type', ''))}")
        return [name for name, _ in listed]

    def ask(self, body: Mapping[str, JSON]) -> Generator[UpstreamChunk]:
        """Yield the answer as it arrives; one that is not a stream is two chunks. Raises ChatFailed.

        Closing the generator disconnects. If a server refuses `stream_options`, it is asked again without: then there
        is no token count from the server.
        """
        try:
            yield from self._ask(body)
        except _Refused as refused:
            if "stream_options" not in body or "stream_options" not in str(refused):
                raise
            yield from self._ask({name: value for name, value in body.items() if name != "stream_options"})

    def _ask(self, body: Mapping[str, JSON]) -> Generator[UpstreamChunk]:
        with self._answer("POST", f"/{Dialect.CHAT}", dumps(body)) as response:
            if "text/event-stream" in response.headers.get("content-type", "").lower():
                yield from self._events(response)
            else:
                whole = self._read(self._whole(response))
                yield whole
                yield replace(whole, choices=())  # tells, as in a stream, that the usage is that of all choices

    @contextlib.contextmanager
    def _answer(self, method: str, path: str, body: bytes | None) -> Iterator[httpx.Response]:
        """Send a request; gives a successful answer's head, with its body still to be read.

        Raises ChatFailed for HTTP errors, also for those raised while the block runs.
        """
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            with self._http.stream(method, self.target.url + path, content=body, headers=headers) as response:
                if response.status_code != 200:
                    raise self._refused(response)
                yield response
        except httpx.ConnectError as error:
            raise ChatFailed(f"{self.target} cannot be reached: {direct.why(error)}{self._hint()}") from error
        except httpx.TimeoutException as error:
            raise ChatFailed(f"{self.target} sent nothing for {self.seconds:g} s") from error
        except httpx.HTTPError as error:
            raise ChatFailed(f"{self.target} broke off: {direct.why(error)}") from error

    def _hint(self) -> str:
        if self.target.url != DEFAULT_URL:
            return ""
        return "; start a server with: nproxy serve (or name one with --url)"

    def _refused(self, response: httpx.Response) -> _Refused:
        error = wrap_foreign(response.status_code, response.headers.get("content-type", ""), self._whole(response))
        message = self._fit(error.message)
        if response.status_code == 401 and self.target.key is None:
            message = f"{message.rstrip('.')}; give its key with --api-key"
        return _Refused(f"{self.target} answered {response.status_code}: {message}")

    def _whole(self, response: httpx.Response) -> bytes:
        body = bytearray()
        for piece in response.iter_bytes():
            body += piece
            if len(body) > LARGEST:
                raise ChatFailed(f"{self.target}: the answer is larger than {LARGEST} bytes")
        return self.target.blotted(bytes(body))

    def _events(self, response: httpx.Response) -> Iterator[UpstreamChunk]:
        try:
            for event in _decoded(response.iter_bytes()):
                match read_event(event._replace(data=self.target.blotted(event.data))):
                    case Mark.DONE:
                        return
                    case Mark.NOTHING:
                        pass
                    case ApiError() as error:
                        raise self._failed(error)
                    case chunk:
                        yield chunk_of(chunk, Dialect.CHAT)
        except SSEError as error:
            raise ChatFailed(f"{self.target}: {error}") from error
        except MalformedChunk as error:
            raise self._malformed(error) from error

    def _read(self, body: bytes) -> UpstreamChunk:
        try:
            answer = parse_answer(body, Dialect.CHAT)
        except MalformedChunk as error:
            raise self._malformed(error) from error
        if answer.error is not None:
            raise self._failed(error_in_band(body))
        return answer

    def _malformed(self, error: MalformedChunk) -> ChatFailed:
        return ChatFailed(f"{self.target} does not answer as the OpenAI API specifies: {error}")

    def _failed(self, error: ApiError) -> ChatFailed:
        return ChatFailed(f"{self.target} failed: {self._fit(error.message)}")

    def _fit(self, words: str) -> str:
        """Return a server's words made safe for the terminal, and without the key."""
        return printable(self.target.without_key(words), 400)


def _decoded(pieces: Iterable[bytes]) -> Iterator[SSEEvent]:
    decoder = SSEDecoder()
    for piece in pieces:
        yield from decoder.feed(piece)
    yield from decoder.close()


@contextlib.contextmanager
def opened(target: Target, seconds: float) -> Iterator[Client]:
    """Open a client of one server."""
    with direct.asking(target, seconds) as http:
        yield Client(target, seconds, http)

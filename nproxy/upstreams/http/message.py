"""One answer, read from bytes as they come: its head, then what has come of its body."""

from __future__ import annotations

from aiohttp import hdrs
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict, CIMultiDictProxy

from nproxy.openai.frozen import frozen
from nproxy.upstreams.http.errors import CutError, DisconnectedError, MalformedError

MOST_FIELDS = 128
MOST_FIELD_BYTES = 8190
"""Of one line of a head: what aiohttp takes, which is on the other side of this gateway."""
MOST_BYTES_FOR_NOTHING = 64 << 10
"""Bytes that may come in a row and be neither the end of a head nor part of a body: interim heads, extensions of
chunks, trailers."""

_SWITCHING = 101
_CODINGS = frozenset({"chunked", "identity"})
"""Of a transfer, those that are taken: others must be asked for (RFC 9112, section 7.4)."""


@frozen
class Head:
    """An answer's status and headers. Bytes of a header that are no UTF-8 are surrogates."""

    status: int
    headers: CIMultiDictProxy[str]

    @property
    def content_type(self) -> str:
        """The media type in small letters, without its parameters; empty where none is said."""
        return self.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()


class Message:
    """The answer to one request; `method` is the request's, since one to HEAD has no body.

    head: None until it has come. complete: the body is whole. waiting: bytes of the body that nobody has taken.
    reusable: once complete, whether the connection may carry another answer.
    """

    __slots__ = (
        "_bodiless",
        "_fields",
        "_for_nothing",
        "_parser",
        "_pieces",
        "complete",
        "head",
        "reusable",
        "waiting",
    )

    def __init__(self, method: str) -> None:
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        # Servers end lines by LF alone, and write a space behind a chunk's size. Leniency with headers would take one
        # behind `Content-Length` too: a length that the parser obeys, and nothing here or further down knows of.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)
        self._bodiless = method == hdrs.METH_HEAD
        self._fields: list[tuple[str, str]] = []
        self._pieces: list[bytes] = []
        self._for_nothing = 0
        self.head: Head | None = None
        self.complete = False
        self.reusable = False
        self.waiting = 0

    @property
    def silent(self) -> bool:
        """Whether nothing at all has come."""
        return self.head is None and not self._for_nothing

    def feed(self, data: bytes) -> None:
        """Take what has come. Raises MalformedError, after which there is no more to feed."""
        parser = self._parser
        if parser is None:
            self.reusable = False  # nobody asked for more
            return
        self._for_nothing += len(data)
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.reusable = False
            if not self.complete:
                self._parser = None
                raise MalformedError(str(error)) from error
        if self.complete:
            self._parser = None
        elif self._for_nothing > MOST_BYTES_FOR_NOTHING:
            self._parser = None
            raise MalformedError("too much that is no answer")

    def end(self) -> None:
        """Nothing more comes, and it ended in order. Raises where that is too early."""
        if self.complete:
            return
        if self.head is None:
            raise DisconnectedError
        headers = self.head.headers
        if hdrs.CONTENT_LENGTH in headers or headers.get(hdrs.TRANSFER_ENCODING, "").lower() == "chunked":
            raise CutError
        self.complete = True
        self._parser = None

    def abandon(self) -> None:
        """Nobody wants what is left of it."""
        self.take()
        self._parser = None  # which holds on to this, and this to it

    def take(self) -> bytes:
        """What has come of the body and was not taken yet."""
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.waiting = 0
        return data

    # What the parser calls

    def on_message_begin(self) -> None:
        if self.complete:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is not None:
            return  # a trailer
        if len(name) + len(value) > MOST_FIELD_BYTES or len(self._fields) == MOST_FIELDS:
            raise MalformedError("a head is too large")
        self._fields.append((_text(name), _text(value.rstrip(b" \t"))))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser is None or self.head is not None:
            return
        status = parser.get_status_code()
        fields, self._fields = self._fields, []
        if status < 100 or status == _SWITCHING:
            raise MalformedError("no answer has this status, or none that was asked for")
        if status < 200:
            return
        headers = CIMultiDict(fields)
        codings = headers.getall(hdrs.TRANSFER_ENCODING, ())
        if codings and ", ".join(codings).lower() not in _CODINGS:
            raise MalformedError("a transfer coding that was not asked for")
        self.head = Head(status, CIMultiDictProxy(headers))
        self.reusable = parser.should_keep_alive()
        self._for_nothing = 0
        if self._bodiless:
            self.complete = True

    def on_body(self, data: bytes) -> None:
        if self.complete:
            self.reusable = False
            return
        self._for_nothing = 0
        self.waiting += len(data)
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self.head is not None:
            self.complete = True


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")

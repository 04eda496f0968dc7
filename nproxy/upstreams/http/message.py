"""One answer, parsed from bytes as they come: its head, then as much of its body as has come."""

from __future__ import annotations

from aiohttp import hdrs
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict, MultiMapping

from nproxy.openai.frozen import frozen
from nproxy.upstreams.http.errors import CutError, DisconnectedError, MalformedError

MOST_FIELDS = 128
MOST_FIELD_BYTES = 8190
"""Of one line of a head; the same limit as that of aiohttp, which serves the gateway's clients."""
MOST_BYTES_FOR_NOTHING = 64 << 10
"""Most bytes in a row that are no end of a head and no part of a body: interim heads, chunk extensions, trailers."""

_SWITCHING = 101
_CODINGS = frozenset({"chunked", "identity"})
"""Transfer codings that are accepted. A client would have to ask for others (RFC 9112, section 7.4)."""


@frozen
class Head:
    """An answer's status and headers. Bytes of a header that are not UTF-8 are surrogates."""

    status: int
    headers: MultiMapping[str]

    @property
    def content_type(self) -> str:
        """The media type in lower case, without its parameters; empty if there is none."""
        return self.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()


class Message:
    """The answer to one request. method: the request's; an answer to HEAD has no body.

    head: None until it has come. complete: the whole body has come. waiting: bytes of the body that were not taken yet.
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
        # Some servers end lines with LF alone, or write a space after a chunk's size. Leniency with headers is not
        # enabled: it would also accept a space after `Content-Length`, that is a length which the parser obeys and
        # nothing else here, or behind this gateway, knows of.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)
        self._bodiless = method == hdrs.METH_HEAD
        self._fields: list[tuple[bytes, bytes]] = []
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
        """Parse what has come. Raises MalformedError; nothing more may be fed then."""
        parser = self._parser
        if parser is None:
            self.reusable = False  # more came than was requested
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
        """The connection was closed in an orderly way. Raises DisconnectedError or CutError if that was too early."""
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
        """Drop what is left of the answer."""
        self._pieces.clear()
        self.waiting = 0
        self._parser = None  # it refers to this object, and this object to it

    def take(self) -> bytes:
        """Return what has come of the body and was not taken yet."""
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.waiting = 0
        return data

    # Called by the parser

    def on_message_begin(self) -> None:
        """A message behind the whole answer was not asked for."""
        if self.complete:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head. Raises MalformedError if the head is too large."""
        if self.head is not None:
            return  # a trailer
        if len(name) + len(value) > MOST_FIELD_BYTES or len(self._fields) == MOST_FIELDS:
            raise MalformedError("a head is too large")
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Take the head, unless its status says that another one follows."""
        parser = self._parser
        if parser is None or self.head is not None:
            return
        status = parser.get_status_code()
        fields, self._fields = self._fields, []
        if status < 100 or status == _SWITCHING:
            raise MalformedError("no answer has this status, or none that was asked for")
        if status < 200:
            return
        headers = CIMultiDict(
            [
                (name.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape").rstrip(" \t"))
                for name, value in fields
            ]
        )
        codings = headers.getall(hdrs.TRANSFER_ENCODING, ())
        if codings and ", ".join(codings).lower() not in _CODINGS:
            raise MalformedError("a transfer coding that was not asked for")
        self.head = Head(status, headers)
        self.reusable = parser.should_keep_alive()
        self._for_nothing = 0
        if self._bodiless:
            self.complete = True

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        if self.complete:
            self.reusable = False
            return
        self._for_nothing = 0
        self.waiting += len(data)
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """Note the end."""
        if self.head is not None:
            self.complete = True

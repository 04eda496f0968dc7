"""Parses what a leg sent. If it cannot be an answer, the leg has failed."""

from __future__ import annotations

from nproxy.choices.events import Failure, FailureKind
from nproxy.openai.chunks import MalformedChunk, UpstreamChoice, UpstreamChunk, as_delta, parse_answer, parse_chunk
from nproxy.openai.dialect import Dialect
from nproxy.openai.in_band import status_in_band
from nproxy.openai.jsonvalue import dumps, loads
from nproxy.openai.sse import BOM, SSEDecoder, SSEError, SSEEvent
from nproxy.openai.unread import loads_but_long_parts

_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""How a stream of events may begin; the last is a comment. No JSON begins so."""
LONGEST_START = len(BOM) + max(map(len, _FIELDS))


class LegFault(Exception):
    """What a leg sent makes it a failure, although the transport worked."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def read_chunk(data: bytes, dialect: Dialect) -> UpstreamChunk:
    """Parse one event of a stream. Raises LegFault for what cannot be parsed and for an in-band error."""
    try:
        chunk = parse_chunk(data, dialect)
    except MalformedChunk as error:
        raise _invalid_event() from error
    if chunk.error is not None:
        raise in_band(data)
    return chunk


def read_message(choice: UpstreamChoice) -> UpstreamChoice:
    """Return a choice of a stream with its message as its delta. Raises LegFault for what is no message."""
    try:
        return as_delta(choice)
    except MalformedChunk as error:
        raise _invalid_event() from error


def _invalid_event() -> LegFault:
    return LegFault(Failure(FailureKind.MALFORMED, "The upstream sent an invalid event."))


def read_answer(body: bytes, dialect: Dialect, *, in_part: bool = False) -> UpstreamChunk:
    """Parse a whole answer, which has choices. Raises LegFault as `read_chunk` does.

    in_part: leave unread what is long and decides nothing, such as log probabilities.
    """
    try:
        answer = parse_answer(body, dialect, loads_but_long_parts if in_part else loads)
    except MalformedChunk as error:
        failure = Failure(FailureKind.MALFORMED, "The upstream's answer is invalid.")
        raise LegFault(failure) from error
    if answer.error is not None:
        raise in_band(body)
    if not answer.choices:
        raise LegFault(Failure(FailureKind.MALFORMED, "The upstream's answer contains no choices."))
    if (lost := answer.choices[0].extra.get("error")) and all(one.extra.get("error") for one in answer.choices):
        raise in_band(dumps({"error": lost}))  # OpenRouter: the provider that was to answer has failed
    return answer


def begins_events(body: bytes) -> bool:
    """Whether a body consists of events, whatever its content-type says.

    Its first LONGEST_START bytes that are not blank decide.
    """
    return body.lstrip().removeprefix(BOM).startswith(_FIELDS)


def read_events(body: bytes) -> list[SSEEvent]:
    """Parse a whole body that consists of events. Raises LegFault if an event is too large."""
    decoder = SSEDecoder()
    try:
        return [*decoder.feed(body), *decoder.close()]
    except SSEError as error:
        failure = Failure(FailureKind.OVERSIZE, "An event of the upstream is larger than the limit.")
        raise LegFault(failure) from error


def in_band(data: bytes) -> LegFault:
    """Return the fault for an error in place of an answer, in the upstream's own words."""
    message, status = "The upstream answered with an error.", status_in_band(data)
    return LegFault(Failure(FailureKind.IN_BAND, message, status=status, content_type="application/json", body=data))

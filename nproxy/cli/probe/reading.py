"""A reply to a generation call as the interview uses it: choices, usage, and what its stream looked like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nproxy.cli.probe.questions import Reply
from nproxy.openai.chunks import MalformedChunk
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.sse import SSEDecoder, SSEError
from nproxy.openai.stream_reading import Mark, read_event
from nproxy.openai.usage import Usage, parse_usage, within_leg

_SPOKEN = ("content", "reasoning_content", "reasoning", "thinking", "refusal")


@dataclass(slots=True)
class ParsedChoice:
    """One choice. text: everything it said, reasoning included. logprobs: whether it carried any."""

    text: str = ""
    finish: str | None = None
    logprobs: bool = False


@dataclass(slots=True)
class StreamLook:
    """What a stream looked like."""

    events: int = 0
    """How many events held a chunk."""
    opened: list[tuple[int, str]] = field(default_factory=list)
    """For every choice in a chunk with a role or text: its index, and "role" or "text"."""
    ids: set[str] = field(default_factory=set)
    """The ids of the chunks."""
    tails: list[Usage] = field(default_factory=list)
    """The usages of chunks without choices."""
    riders: dict[int, Usage] = field(default_factory=dict)
    """For each choice, the last usage that came with it."""
    done: bool = False
    """Whether [DONE] came."""
    error: bool = False
    """Whether the stream held an error, or something that is not a chunk."""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply with choices.

    choices: in order of index. usage: of the whole answer. look: None for a JSON answer.
    """

    choices: tuple[ParsedChoice, ...]
    usage: Usage | None
    look: StreamLook | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each choice."""
        return tuple(choice.text for choice in self.choices)


def read(reply: Reply) -> ParsedReply | None:
    """Read a reply; returns None if it is not an answer with choices."""
    if not reply.ok:
        return None
    if "event-stream" in reply.content_type:
        return _stream(reply.body)
    value = reply.json()
    if not isinstance(value, dict):
        return None
    choices = tuple(_add(choice, ParsedChoice()) for choice in choices_of(value))
    return ParsedReply(choices, parse_usage(value.get("usage"))) if choices else None


def _stream(body: bytes) -> ParsedReply | None:
    look, choices = StreamLook(), dict[int, ParsedChoice]()
    for chunk in _chunks(body, look):
        look.events += 1
        if isinstance(identity := chunk.get("id"), str):
            look.ids.add(identity)
        usage = parse_usage(chunk.get("usage"))
        present = list(choices_of(chunk))
        if usage is not None and not present:
            look.tails.append(usage)
        for choice in present:
            index = choice.get("index")
            index = index if isinstance(index, int) else 0
            look.opened += [(index, what) for what in _carries(choice)]
            _add(choice, choices.setdefault(index, ParsedChoice()))
            if usage is not None:
                look.riders[index] = usage
    if not choices or look.error:
        return None
    whole = within_leg(look.tails, look.riders, choices=len(choices))
    return ParsedReply(tuple(choices[index] for index in sorted(choices)), whole, look)


def _chunks(body: bytes, look: StreamLook) -> Iterator[Mapping[str, JSON]]:
    decoder = SSEDecoder()
    try:
        for event in (*decoder.feed(body), *decoder.close()):
            match read_event(event):
                case Mark.DONE:
                    look.done = True
                case Mark.NOTHING:
                    pass
                case ApiError():
                    look.error = True
                    return
                case chunk:
                    yield chunk
    except (SSEError, MalformedChunk):
        look.error = True


def choices_of(value: Mapping[str, JSON]) -> Iterator[Mapping[str, JSON]]:
    """Yield the choices of an answer or a chunk that are objects."""
    found = value.get("choices")
    for choice in found if isinstance(found, list) else ():
        if isinstance(choice, dict):
            yield choice


def _inside(choice: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the object with a choice's text: its message, its delta, or in a legacy completion the choice itself."""
    for name in ("message", "delta"):
        if isinstance(inside := choice.get(name), dict):
            return inside
    return choice


def _text(choice: Mapping[str, JSON]) -> str:
    inside = _inside(choice)
    spoken = [inside.get(name) for name in (*_SPOKEN, "text")]
    return "".join(part for part in spoken if isinstance(part, str))


def _carries(choice: Mapping[str, JSON]) -> Iterator[str]:
    if _inside(choice).get("role") is not None:
        yield "role"
    if _text(choice):
        yield "text"


def _add(choice: Mapping[str, JSON], so_far: ParsedChoice) -> ParsedChoice:
    """Add what a choice, or a chunk's part of one, says."""
    so_far.text += _text(choice)
    finish = choice.get("finish_reason")
    so_far.finish = finish if isinstance(finish, str) else so_far.finish
    logprobs = choice.get("logprobs")
    so_far.logprobs = so_far.logprobs or (isinstance(logprobs, dict) and any(logprobs.values()))
    return so_far

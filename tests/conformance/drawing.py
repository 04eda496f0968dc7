"""Draws everything about one request at random: its fields, its upstream's capabilities, each call's answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from nproxy.choices.capability import Capability
from nproxy.choices.commands import OpenLeg
from nproxy.choices.compose import asked_as_stream, compose
from nproxy.choices.events import (
    Event,
    Failure,
    FailureKind,
    LegBody,
    LegChunk,
    LegChunks,
    LegEnded,
    LegFailed,
)
from nproxy.choices.segments import Chunks, one_by_one, read_segment, split_chunks
from nproxy.openai.body import Body
from nproxy.openai.requests import Limits, Request, parse_chat, parse_completion
from nproxy.openai.sse import SSEDecoder, SSEEvent
from tests.conformance.reading import Misread
from tests.fakes import quirks
from tests.fakes.answers import Answer
from tests.fakes.behaviour import Behaviour, Quirk

SEED = 42
LIMITS = Limits()

TOKENS = [
    "a",
    " b",
    "cd ",
    "7",
    "é",
    "漢",
    "😀",
    '"',
    "\\",
    "\n",
    "\r",
    "\t",
    "data:",
    "[DONE]",
    "\u2028",
    "{",
    "</s>",
    " " * 9,
]
FRAMES: list[Callable[[bytes], bytes]] = [
    lambda data: b"data: " + data + b"\n\n",
    lambda data: b"data:" + data + b"\n\n",
    lambda data: b"data:  " + data + b" \n\n",
    lambda data: b": x\nid: 1\nevent: message\ndata: " + data + b"\nretry: 3\n\n",
    lambda data: b"data: " + data.replace(b', "', b',\ndata: "') + b"\n\n",
]
NEWLINES = [b"\n", b"\n", b"\r\n", b"\r"]
ENDS = ["whole", "whole", "whole", "whole", "cut", "ended", "malformed", "error", "named error", "interrupted"]


@dataclass
class Drawn:
    """What is drawn for one request before it is planned. texts: what a choice says, by its seed."""

    request: Request
    capability: Capability
    texts: dict[int, list[str]]
    logprobs: bool
    usage: bool = True  # every call so far reported its usage
    failed: bool = False  # a call that began did not end well
    split: bool = False  # every prompt has calls of its own

    @property
    def chat(self) -> bool:
        return self.request.dialect.name == "CHAT"


def draw_request(rng: Random) -> Drawn:
    """Draw a request and the capabilities of its upstream."""
    chat = rng.random() < 0.7
    n = rng.choice([1, 1, 2, 3, 4])
    fields: dict[str, Any] = {"model": "m", "seed": SEED, "stream": rng.random() < 0.8}
    if n > 1 or rng.random() < 0.5:
        fields["n"] = n
    if fields["stream"] and rng.random() < 0.6:
        fields["stream_options"] = {"include_usage": True}
    logprobs = chat and rng.random() < 0.2
    if logprobs:
        fields["logprobs"] = True
    if chat:
        body = Body.parse(json.dumps({**fields, "messages": [{"role": "user", "content": "hi"}]}).encode())
        request: Request = parse_chat(body, LIMITS)
    else:
        prompt: Any = "p" if rng.random() < 0.7 else ["p:", "q:"]
        fields |= {"prompt": prompt, "echo": isinstance(prompt, list)}  # the echo shows a choice's prompt
        request = parse_completion(Body.parse(json.dumps(fields).encode()), LIMITS)
    capability = Capability(
        native_width=rng.choice([None, 1, 1, 2]),
        n_untested=rng.random() < 0.2,
        prompt_lists=rng.random() < 0.7,
        parallel=rng.choice([None, None, 1, 2]),
        json_usage=rng.random() < 0.9,
        model=rng.choice([None, "theirs"]),
    )
    texts = {SEED + i: [rng.choice(TOKENS) for _ in range(rng.randint(1, 5))] for i in range(n)}
    return Drawn(request, capability, texts, logprobs)


# ---- the answer of one call


def answer_of(rng: Random, drawn: Drawn, opened: OpenLeg) -> Iterator[list[Event]]:
    """The events of one call, in the batches in which the decoder returns them."""
    request, capability, leg = drawn.request, drawn.capability, opened.leg
    body = json.loads(bytes(compose(request, capability, leg)))
    asked = body.get("n") or 1
    native = capability.native_width is None or capability.native_width > 1 or rng.random() < 0.5
    several_prompts = isinstance(body.get("prompt"), list) and len(body["prompt"]) > 1
    width = asked if several_prompts or rng.random() < 0.9 else rng.randint(1, asked)
    tells = rng.random() < 0.95
    drawn.usage &= tells
    behaviour = Behaviour(
        n="native" if native and asked > 1 else "ignore",
        width=width,
        pieces=drawn.texts.__getitem__,
        usage=tells,
        role=rng.random() < 0.9,
        quirk=quirks.composed(*draw_quirks(rng, request)),
    )
    answer = Answer(behaviour, body, chat=drawn.chat, id=f"up-{leg.number}")
    if not asked_as_stream(request, capability, leg) or rng.random() < 0.05:
        yield [LegBody(leg.number, json.dumps(answer.whole()).encode())]
        yield [LegEnded(leg.number)]
        return
    if not body.get("stream_options", {}).get("include_usage"):
        drawn.usage = False
    yield from streamed(rng, drawn, leg.number, answer)


def draw_quirks(rng: Random, request: Request) -> list[Quirk]:
    """Some quirks in random order. Usage per choice comes first, before anything is added to the chunks."""
    some = rng.sample(quirks.HARMLESS, rng.choice([0, 1, 2, 3, 6]))
    if quirks.usage_per_choice in some:
        some.remove(quirks.usage_per_choice)
        if request.prompts == 1:  # servers differ in how they count several prompts
            some.insert(0, quirks.usage_per_choice)
    if not request.stream and quirks.after_the_finish in some:
        some.remove(quirks.after_the_finish)  # a whole answer takes what comes behind a finish
    return [*some, quirks.together] if rng.random() < 0.2 else some


def streamed(rng: Random, drawn: Drawn, leg: int, answer: Answer) -> Iterator[list[Event]]:
    """A call that is answered with a stream, complete or broken, cut into segments anywhere."""
    frame, newline, escaped = rng.choice(FRAMES), rng.choice(NEWLINES), rng.random() < 0.3
    frames = [
        part if isinstance(part, bytes) else frame(json.dumps(part, ensure_ascii=escaped).encode())
        for part in answer.chunks()
    ]
    end = rng.choice(ENDS)
    if end != "whole":
        del frames[rng.randint(1, len(frames)) :]
        drawn.failed = True
    elif rng.random() < 0.8:
        frames.append(frame(b"[DONE]"))
    beside = end == "interrupted"
    if beside:
        frames.append(frame(b"[DONE]"))
    if end == "malformed":
        frames.append(b'data: {"choices": [{"ind\n\n')
    elif end == "error":
        frames.append(b'data: {"error": {"message": "broken"}}\n\n')
    elif end == "named error":
        frames.append(b"event: error\ndata: broken\n\n")
    raw = b"".join(frames).replace(b"\n", newline)
    if rng.random() < 0.1:
        raw = b"\xef\xbb\xbf" + raw
    if rng.random() < 0.2:
        raw = raw[: -len(newline)]  # the last blank line is missing
    for chunks in decoded(rng, leg, raw):
        yield [*chunks]
    if end == "cut":
        yield [LegFailed(leg, Failure(FailureKind.CUT, "It broke."))]
    else:
        yield [LegEnded(leg, beside)]


def each(chunk: LegChunk | LegChunks) -> list[LegChunk]:
    """The events that a chunk stands for, each as a chunk of its own."""
    return split_chunks(chunk.leg, chunk.data) if isinstance(chunk, LegChunks) else [chunk]


def decoded(rng: Random, leg: int, raw: bytes) -> Iterator[Chunks]:
    """Decode bytes cut anywhere. Raises Misread if that gives other events than the bytes in one piece."""
    whole = SSEDecoder()
    expected = [*whole.feed(raw), *whole.close()]
    decoder, came, at = SSEDecoder(), 0, 0
    step = rng.choice([1, 3, 20, 200, 2000])
    while at < len(raw):
        cut = at + rng.randint(1, 2 * step)
        chunks = read_segment(leg, decoder, raw[at:cut])
        at = cut
        if at >= len(raw):
            chunks = [*chunks, *one_by_one(leg, decoder.close())]
        events = [SSEEvent(one.data, one.name) for chunk in chunks for one in each(chunk)]
        if events != expected[came : came + len(events)]:
            raise Misread(f"other events in pieces than whole: {events}")
        came += len(events)
        if events:
            yield chunks
    if came != len(expected):
        raise Misread(f"{len(expected) - came} events are lost in pieces")

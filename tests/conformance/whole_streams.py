"""One request played from end to end without sockets, everything about it drawn: bytes in, bytes out, no time.

`play(rng)` draws a request, what its upstream does wrong, how the bytes are cut and in which order they come, and
reads what the client would read. It raises for a wrong index, a lost token, a doubled role, usage counted twice, or an
end that does not come.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Begin, CancelLeg, Command, Emit, Finish, OpenLeg, Respond, SetTimer
from nproxy.choices.compose import asked_as_stream, compose
from nproxy.choices.conduct import Conduct, ConductSettings
from nproxy.choices.events import (
    Event,
    Failure,
    FailureKind,
    LegBegan,
    LegBody,
    LegChunk,
    LegEnded,
    LegFailed,
    TimerFired,
)
from nproxy.choices.plan import Request, make_plan
from nproxy.openai.body import Body
from nproxy.openai.requests import Limits, parse_chat, parse_completion
from nproxy.openai.sse import SSEDecoder, SSEEvent
from tests.conformance.reading import Misread, Reading, Whole, read_stream
from tests.fakes import quirks
from tests.fakes.answers import PROMPT_TOKENS, Answer, usage
from tests.fakes.behaviour import Behaviour

SEED = 42
LIMITS = Limits()
MOST_STEPS = 10_000

TOKENS = [
    "a",
    " b",
    "cd ",
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
FRAMES = [
    lambda data: b"data: " + data + b"\n\n",
    lambda data: b"data:" + data + b"\n\n",
    lambda data: b"data:  " + data + b" \n\n",
    lambda data: b": x\nid: 1\nevent: message\ndata: " + data + b"\nretry: 3\n\n",
    lambda data: b"data: " + data.replace(b', "', b',\ndata: "') + b"\n\n",
]
NEWLINES = [b"\n", b"\n", b"\r\n", b"\r"]
ENDS = ["whole", "whole", "whole", "whole", "cut", "ended", "malformed", "error", "named error"]


@dataclass
class Drawn:
    """What is drawn for one request, before it is planned. texts: by seed, what the choice with this seed says."""

    request: Request
    capability: Capability
    texts: dict[int, list[str]]
    logprobs: bool
    usage: bool = True  # every call so far told its usage
    failed: bool = False  # some call that began did not come to its end
    split: bool = False  # every prompt has calls of its own

    @property
    def chat(self) -> bool:
        return self.request.dialect.name == "CHAT"


def draw_request(rng: Random) -> Drawn:
    """Draw a request and the abilities of its upstream."""
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
        fields |= {"prompt": prompt, "echo": isinstance(prompt, list)}  # the echo tells whose a choice is
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


# ---- what one call answers


def answer_of(rng: Random, drawn: Drawn, opened: OpenLeg) -> Iterator[list[Event]]:
    """The events of one call in batches, as they come out of the decoder."""
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
        yield [LegBegan(leg.number, sse=False), LegBody(leg.number, json.dumps(answer.whole()).encode())]
        yield [LegEnded(leg.number)]
        return
    if not body.get("stream_options", {}).get("include_usage"):
        drawn.usage = False
    yield from streamed(rng, drawn, leg.number, answer)


def draw_quirks(rng: Random, request: Request) -> list[quirks.Quirk]:
    """Some quirks in any order; the usage of each choice is counted before anything is added."""
    some = rng.sample(quirks.HARMLESS, rng.choice([0, 1, 2, 3, 6]))
    if quirks.usage_per_choice in some:
        some.remove(quirks.usage_per_choice)
        if request.prompts == 1:  # how it counts several prompts, no two servers agree
            some.insert(0, quirks.usage_per_choice)
    return [*some, quirks.together] if rng.random() < 0.2 else some


def streamed(rng: Random, drawn: Drawn, leg: int, answer: Answer) -> Iterator[list[Event]]:
    """A call that answers with a stream, whole or broken, in segments cut anywhere."""
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
    yield [LegBegan(leg, sse=True)]
    for events in decoded(rng, raw):
        yield [LegChunk(leg, event.data, event.name) for event in events]
    if end == "cut":
        yield [LegFailed(leg, Failure(FailureKind.CUT, "It broke."))]
    else:
        yield [LegEnded(leg)]


def decoded(rng: Random, raw: bytes) -> Iterator[list[SSEEvent]]:
    """Decode bytes cut anywhere; raises where that gives other events than the whole does."""
    whole = SSEDecoder()
    expected = [*whole.feed(raw), *whole.close()]
    decoder, came, at = SSEDecoder(), 0, 0
    step = rng.choice([1, 3, 20, 200, 2000])
    while at < len(raw):
        cut = at + rng.randint(1, 2 * step)
        events = decoder.feed(raw[at:cut])
        at = cut
        if at >= len(raw):
            events = [*events, *decoder.close()]
        if events != expected[came : came + len(events)]:
            raise Misread(f"other events in pieces than whole: {events}")
        came += len(events)
        if events:
            yield events
    if came != len(expected):
        raise Misread(f"{len(expected) - came} events are lost in pieces")


# ---- the play


class Client:
    """What the client gets, and what the driver would keep: calls and timers."""

    def __init__(self) -> None:
        self.raw = b""
        self.began = False
        self.respond: Respond | None = None
        self.outcome = ""
        self.calls: dict[int, OpenLeg] = {}
        self.timers: list[str] = []

    def take(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Emit():
                    if not self.began or self.outcome:
                        raise Misread("bytes before the head or behind the end")
                    self.raw += command.data
                case Begin():
                    self.began = True
                case Respond():
                    self.respond = command
                case OpenLeg():
                    self.calls[command.leg.number] = command
                case CancelLeg():
                    self.calls.pop(command.leg, None)
                case SetTimer():
                    self.timers.append(command.name)
                case Finish():
                    self.outcome = command.outcome
                case _:
                    pass


def play(rng: Random) -> None:
    """Play one request; raises Misread."""
    drawn = draw_request(rng)
    settings = ConductSettings("own", 1_700_000_000, "m", retries_per_leg=rng.randint(0, 1))
    plan = make_plan(drawn.request, drawn.capability, lambda: 7)
    conduct = Conduct(
        drawn.request, plan, drawn.capability, settings, budget=lambda: True, jitter=lambda: 0.5, draw=lambda: 7
    )
    client = Client()
    client.take(conduct.start())
    going: dict[int, tuple[OpenLeg, Iterator[list[Event]]]] = {}
    for _ in range(MOST_STEPS):
        if client.outcome:
            break
        client.take(conduct.receive(next_events(rng, drawn, client, going)))
    else:
        raise Misread("it never ends")
    if client.calls:
        raise Misread(f"it is over, and these calls are open: {client.calls}")
    drawn.split = any(leg.prompt is not None for leg in plan.legs)
    judge(drawn, client, relayed=plan.mode == "relay")


def next_events(
    rng: Random, drawn: Drawn, client: Client, going: dict[int, tuple[OpenLeg, Iterator[list[Event]]]]
) -> list[Event]:
    """What happens next: some calls say something, or a timer runs out."""
    for number, opened in client.calls.items():
        if number not in going or going[number][0] is not opened:
            going[number] = opened, answer_of(rng, drawn, opened)
    timers = [name for name in client.timers if name != "headers" or rng.random() < 0.1]
    if timers and (not client.calls or rng.random() < 0.05):
        name = rng.choice(timers)
        client.timers.remove(name)
        return [TimerFired(name)]
    if not client.calls:
        raise Misread("nothing is going on, and it is not over")
    events: list[Event] = []
    for number in rng.sample(list(client.calls), rng.randint(1, len(client.calls))):
        batch = next(going[number][1], None)
        if batch is None:
            continue  # it has ended, and waits to be cancelled
        events += batch
        if isinstance(batch[-1], LegEnded | LegFailed):
            del client.calls[number]
    return events


def judge(drawn: Drawn, client: Client, *, relayed: bool) -> None:
    """Read what came, and hold it against what was said."""
    request = drawn.request
    echoed = ["p:", "q:"] if request.prompts > 1 else [""]
    expected = [
        echoed[index // request.n] + "".join(drawn.texts[SEED + index % request.n]) for index in range(request.choices)
    ]
    if client.respond is not None and client.respond.status != 200:
        if client.outcome == "ok" or client.began:
            raise Misread(f"an error beside success: {client.respond}")
        if not drawn.failed:
            raise Misread(f"nothing went wrong, and it fails: {client.respond}")
        return
    if request.stream:
        reading: Reading | Whole = read_stream(
            client.raw,
            choices=request.choices,
            chat=drawn.chat,
            include_usage=request.include_usage,
            relayed=relayed,
        )
        failed = reading.error is not None if isinstance(reading, Reading) else False
    else:
        if client.respond is None:
            raise Misread("no answer")
        reading, failed = Whole(client.respond.body, choices=request.choices, chat=drawn.chat), False
    if failed and not drawn.failed:
        raise Misread("nothing went wrong, and the stream ends in an error")
    for index, text in reading.texts.items():
        whole = text == expected[index] if index in reading.finishes else expected[index].startswith(text)
        if not whole:
            raise Misread(f"choice {index} says {text!r} and not {expected[index]!r}")
    if drawn.logprobs:
        check_logprobs(reading)
    if not failed:
        check_usage(drawn, reading)


def check_logprobs(reading: Reading | Whole) -> None:
    """Every token stands beside its text."""
    if isinstance(reading, Whole):
        for choice in reading.choices:
            told = "".join(entry["token"] for entry in choice["logprobs"]["content"])
            if told != choice["message"]["content"]:
                raise Misread(f"log probabilities of {told!r}")
        return
    for voice in reading.voices:
        for choice in voice.choices:
            said, logprobs = choice["delta"].get("content") or "", choice["logprobs"]
            if said != "".join(entry["token"] for entry in (logprobs or {"content": []})["content"]):
                raise Misread(f"not the log probabilities of {said!r}: {logprobs}")


def check_usage(drawn: Drawn, reading: Reading | Whole) -> None:
    """The prompt once, and every token once, unless some call told nothing."""
    request = drawn.request
    if request.stream and not request.include_usage:
        return
    completion = sum(len(drawn.texts[SEED + index % request.n]) for index in range(request.choices))
    prompts = request.prompts if drawn.split else 1
    expected = usage(PROMPT_TOKENS * prompts, completion)
    if reading.usage != (expected if drawn.usage else None) and not drawn.failed:
        raise Misread(f"usage is {reading.usage} and not {expected if drawn.usage else None}")

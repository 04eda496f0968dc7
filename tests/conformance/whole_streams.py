"""Plays one random request from end to end without sockets and without time: bytes in, bytes out.

`play(rng)` draws a request, what its upstream does wrong, how the bytes are cut and in which order they come, and reads
what the client would read. It raises Misread for a wrong index, a lost token, a second role, usage counted twice, or a
missing end.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from nproxy.choices.commands import Begin, CancelLeg, Command, Emit, Finish, OpenLeg, Respond, SetTimer
from nproxy.choices.conduct import Conduct
from nproxy.choices.events import (
    Event,
    LegEnded,
    LegFailed,
    Timer,
    TimerFired,
    TimerKind,
)
from nproxy.choices.plan import make_plan
from nproxy.choices.settings import ConductSettings, Names
from tests.conformance.drawing import SEED, Drawn, answer_of, draw_request
from tests.conformance.reading import Misread, Reading, Whole, read_stream
from tests.fakes.answers import PROMPT_TOKENS, usage

MOST_STEPS = 10_000


class Client:
    """What the client gets, and what the driver would keep: calls and timers."""

    def __init__(self) -> None:
        self.raw = b""
        self.began = False
        self.respond: Respond | None = None
        self.outcome = ""
        self.calls: dict[int, OpenLeg] = {}
        self.timers: list[Timer] = []

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
                    self.timers.append(command.timer)
                case Finish():
                    self.outcome = command.outcome
                case _:
                    pass


def play(rng: Random) -> None:
    """Play one request. Raises Misread."""
    drawn = draw_request(rng)
    names = Names("own", 1_700_000_000, "m")
    settings = ConductSettings(
        retries_per_leg=rng.randint(0, 3),
        resume="replay" if rng.random() < 0.4 else "off",
    )
    plan = make_plan(drawn.request, drawn.capability, lambda: 7)
    conduct = Conduct(
        drawn.request, plan, drawn.capability, settings, names, budget=lambda: True, jitter=lambda: 0.5, draw=lambda: 7
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
    judge(drawn, client, relayed=plan.way.mode == "relay")


def next_events(
    rng: Random, drawn: Drawn, client: Client, going: dict[int, tuple[OpenLeg, Iterator[list[Event]]]]
) -> list[Event]:
    """The next events: some calls send something, or a timer fires."""
    for number, opened in client.calls.items():
        if number not in going or going[number][0] is not opened:
            going[number] = opened, answer_of(rng, drawn, opened)
    timers = [timer for timer in client.timers if timer.kind is not TimerKind.HEADERS or rng.random() < 0.1]
    if timers and (not client.calls or rng.random() < 0.05):
        timer = rng.choice(timers)
        client.timers.remove(timer)
        return [TimerFired(timer)]
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
    """Read what came, and compare it with what was said."""
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
    """Check that every token comes with its text."""
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
    """Check that the prompt and every token are counted once, unless a call reported no usage."""
    request = drawn.request
    if request.stream and not request.include_usage:
        return
    completion = sum(len(drawn.texts[SEED + index % request.n]) for index in range(request.choices))
    prompts = request.prompts if drawn.split else 1
    expected = usage(PROMPT_TOKENS * prompts, completion)
    if reading.usage != (expected if drawn.usage else None) and not drawn.failed:
        raise Misread(f"usage is {reading.usage} and not {expected if drawn.usage else None}")

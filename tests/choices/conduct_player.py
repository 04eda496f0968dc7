"""Plays a Conduct as a transcript: events go in, commands come out, and invariants are checked at every step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from nproxy.choices.capability import Capability
from nproxy.choices.commands import (
    Anomaly,
    Begin,
    CancelLeg,
    ChoiceFinished,
    Command,
    Emit,
    FallBack,
    Finish,
    OpenLeg,
    Respond,
    Resumed,
    SetTimer,
)
from nproxy.choices.compose import compose
from nproxy.choices.conduct import Conduct
from nproxy.choices.continuation import ChatContinues
from nproxy.choices.events import (
    Event,
    Failure,
    FailureKind,
    LegBody,
    LegChunk,
    LegEnded,
    LegFailed,
    Timer,
    TimerFired,
    TimerKind,
)
from nproxy.choices.plan import Greedy, Plan, Way, make_plan
from nproxy.choices.resume import Resume
from nproxy.choices.settings import ConductSettings, Names
from nproxy.openai.body import Body
from nproxy.openai.dialect import Dialect
from nproxy.openai.requests import Limits, Request, parse_chat, parse_completion
from nproxy.openai.sse import SSEDecoder
from tests.choices.upstream_says import DONE, OK_STREAM, failure

T = TypeVar("T")

GOOD = ("ok", "partial")

FANOUT = Capability(native_width=1)
NATIVE = Capability(native_width=None)
UNTESTED = Capability(native_width=None, n_untested=True)
EXACT = Capability(native_width=None, exact=True)
ALIASED = Capability(native_width=None, model="up")

ID, CREATED, MODEL = "chatcmpl-own", 1_700_000_000, "m"


def chat(**fields: Any) -> Request:
    """A chat request as a client would send it."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}
    return parse_chat(Body.parse(json.dumps(body).encode()), Limits())


def completion(**fields: Any) -> Request:
    """A legacy completion request as a client would send it."""
    body = {"model": MODEL, "prompt": "hi", **fields}
    return parse_completion(Body.parse(json.dumps(body).encode()), Limits())


def drawing() -> Callable[[], int]:
    """A source of seeds that can be told apart: 1000, 1001, ..."""
    seeds = count(1000)
    return lambda: next(seeds)


# ---- the play


@dataclass
class Play:
    """One request in a Conduct. Methods that play events return the commands they caused, and check the invariants."""

    request: Request
    capability: Capability = FANOUT
    retries: int = 0
    """Most retries of each leg."""
    budget: Callable[[], bool] = lambda: True
    """Whether the retry budget allows another retry."""
    plan: Plan | None = None
    """None to make one."""
    greedy: Greedy = "accept"
    partial: bool = False
    fallback: bool = False
    """Whether a fallback upstream is available."""
    begun: bool = False
    """Whether the client has the head of a stream, and pings, from another upstream."""
    resume: Resume = "off"
    chat_continues: ChatContinues = "no"
    timers: dict[str, float] = field(default_factory=dict)
    """The timers that are set, by name, with their seconds."""
    open: dict[int, OpenLeg] = field(default_factory=dict)
    """The legs that are open, by number."""
    opened: list[OpenLeg] = field(default_factory=list)
    """All legs that were opened, in order."""
    everything: list[Command] = field(default_factory=list)
    """All commands so far."""

    def __post_init__(self) -> None:
        draw = drawing()
        self.plan = self.plan or make_plan(self.request, self.capability, draw, self.greedy)
        settings = ConductSettings(
            retries_per_leg=self.retries,
            partial=self.partial,
            fallback_possible=self.fallback,
            fallback_available=self.fallback,
            resume=self.resume,
            chat_continues=self.chat_continues,
        )
        self.conduct = Conduct(
            self.request,
            self.plan,
            self.capability,
            settings,
            Names(ID, CREATED, MODEL),
            budget=self.budget,
            jitter=lambda: 0.5,
            draw=draw,
            begun=self.begun,
        )
        self._check(self.conduct.start())

    def gets(self, *events: Event) -> list[Command]:
        """Pass events to the conduct in one call."""
        for event in events:
            if isinstance(event, LegEnded | LegFailed):
                self.open.pop(event.leg, None)
            if isinstance(event, TimerFired):
                self.timers.pop(str(event.timer), None)
        commands = self.conduct.receive(events)
        self._check(commands)
        return commands

    def says(self, leg: int, *events: bytes, name: str = "") -> list[Command]:
        """A leg sends events."""
        return self.gets(*(LegChunk(leg, data, name) for data in events))

    def ends(self, leg: int, *, beside: bool = False) -> list[Command]:
        """A leg's answer ends without an error. beside: other calls were at the replica meanwhile."""
        return self.gets(LegEnded(leg, beside))

    def streams(self, leg: int, *events: bytes) -> list[Command]:
        """A leg answers with these events, or with a good short stream, and ends."""
        said = self.gets(*(LegChunk(leg, data) for data in events or OK_STREAM))
        return said + self.ends(leg)

    def answers(self, leg: int, body: bytes) -> list[Command]:
        """A leg answers with a whole body, and ends."""
        return self.gets(LegBody(leg, body), LegEnded(leg))

    def fails(self, leg: int, why: Failure | FailureKind) -> list[Command]:
        """A leg fails."""
        return self.gets(LegFailed(leg, why if isinstance(why, Failure) else failure(why)))

    def breaks_off(self, leg: int, *events: bytes) -> list[Command]:
        """A leg sends events; then its connection breaks."""
        return self.says(leg, *events) + self.fails(leg, FailureKind.CUT)

    def fires(self, name: str) -> list[Command]:
        """A timer runs out."""
        assert name in self.timers, f"{name} was not set: {self.timers}"
        kind, _, leg = name.partition(":")
        return self.gets(TimerFired(Timer(TimerKind(kind), int(leg or -1))))

    # what has happened so far

    @property
    def over(self) -> bool:
        return self.finish is not None

    @property
    def finish(self) -> str | None:
        return next((command.outcome for command in self.everything if isinstance(command, Finish)), None)

    @property
    def emitted(self) -> bytes:
        return b"".join(command.data for command in self.everything if isinstance(command, Emit))

    @property
    def frames(self) -> list[Any]:
        """What the client's decoder reads: parsed events, and "[DONE]"."""
        decoder = SSEDecoder()
        events = [*decoder.feed(self.emitted), *decoder.close()]
        return ["[DONE]" if event.data == DONE else json.loads(event.data) for event in events]

    @property
    def resumed(self) -> list[str]:
        """How each resume of a leg was done, and its outcome."""
        return [f"{resumed.how} {resumed.outcome}" for resumed in self.of(Resumed)]

    @property
    def respond(self) -> Respond:
        (respond,) = self.of(Respond)
        return respond

    @property
    def reply(self) -> Any:
        """The JSON answer."""
        return json.loads(self.respond.body)

    @property
    def way(self) -> Way:
        """What the client is told of how its choices are made, streamed or not."""
        (head,) = [command for command in self.everything if isinstance(command, Begin | Respond)]
        return head.way

    @property
    def headers(self) -> dict[str, str]:
        """The further headers of the whole answer."""
        return dict(self.respond.headers)

    @property
    def anomalies(self) -> list[Anomaly]:
        return self.of(Anomaly)

    def of(self, kind: type[T]) -> list[T]:
        """All commands of one type so far."""
        return [command for command in self.everything if isinstance(command, kind)]

    def _check(self, commands: Sequence[Command]) -> None:
        assert not self.over or not commands, f"after Finish: {commands}"
        for command in commands:
            match command:
                case OpenLeg():
                    assert command.leg.number not in self.open
                    self.open[command.leg.number] = command
                    self.opened.append(command)
                case CancelLeg():
                    self.open.pop(command.leg, None)
                case SetTimer():
                    assert str(command.timer) not in self.timers, f"{command.timer} is set already"
                    self.timers[str(command.timer)] = command.seconds
                case _:
                    pass
            self.everything.append(command)
        limit = self.capability.parallel
        assert limit is None or len(self.open) <= limit
        kinds = [type(command) for command in self.everything]
        assert self.begun + kinds.count(Begin) + kinds.count(Respond) <= 1
        assert kinds.count(Respond) + kinds.count(FallBack) <= 1
        assert Emit not in kinds or self.begun or Begin in kinds[: kinds.index(Emit)]
        assert [type(command) for command in commands].count(Emit) <= 1, "one write per call"
        if Finish in kinds:
            assert kinds.count(Finish) == 1 and kinds[-1] is Finish
            assert not self.open, f"legs are still open: {self.open}"
            self._check_the_end()
        finished = [command.index for command in self.everything if isinstance(command, ChoiceFinished)]
        assert len(finished) == len(set(finished)), "a choice finished twice"

    def _check_the_end(self) -> None:
        """Check that there are exactly n choices or an error; never both, never fewer choices."""
        if self.finish == "":
            assert self.frames[-1:] != ["[DONE]"] and not self.of(Respond), "the client has left"
        elif self.finish == "fallback":
            assert self.fallback and self.of(FallBack) and not self.frames
        elif self.request.stream and (self.begun or self.of(Begin)):
            assert (self.finish in GOOD) == (self.frames[-1] == "[DONE]")
            assert self.frames.count("[DONE]") <= 1
            if self.finish in GOOD:
                assert sorted(finishes(self.frames)) == list(range(self.request.choices))
            else:
                assert "error" in self.frames[-1]
        elif self.finish == "ok":
            assert self.respond.status == 200
            assert [choice["index"] for choice in self.reply["choices"]] == list(range(self.request.choices))
        elif self.finish == "partial":
            assert self.partial and self.respond.status == 200
            indices = [choice["index"] for choice in self.reply["choices"]]
            assert indices == sorted(set(indices)) and 0 < len(indices) < self.request.choices
            assert self.headers["x-nproxy-partial"] == f"{len(indices)}/{self.request.choices}"
        else:
            assert self.respond.status >= 400
            assert set(self.reply["error"]) >= {"message", "type", "param", "code"}


def replayed(request: Request | None = None, capability: Capability = FANOUT, **more: Any) -> Play:
    """Play a request, streamed unless given, whose legs are replayed if they are cut."""
    return Play(request or chat(stream=True, seed=5), capability, **{"retries": 1, "resume": "replay", **more})


def continued(request: Request, capability: Capability = FANOUT, **more: Any) -> Play:
    """Play a request whose legs are continued if they are cut."""
    return Play(request, capability, **{"retries": 1, "resume": "continue", "chat_continues": "flag", **more})


def body_of(play: Play, call: OpenLeg) -> Any:
    """The body that a call sends, parsed."""
    return json.loads(bytes(compose(play.request, play.capability, call.leg)))


# ---- the client's side


def choices_in(frames: list[Any]) -> Iterator[dict[str, Any]]:
    """All choices of all chunks, in order."""
    for frame in frames:
        if isinstance(frame, dict):
            yield from frame.get("choices", [])


def finishes(frames: list[Any]) -> list[int]:
    """The indices of finished choices, in order."""
    return [choice["index"] for choice in choices_in(frames) if choice["finish_reason"] is not None]


def contents(frames: list[Any]) -> dict[int, str]:
    """The text per index, joined as a client does it, for either dialect."""
    texts: dict[int, str] = {}
    for choice in choices_in(frames):
        said = choice["delta"].get("content") if "delta" in choice else choice["text"]
        texts[choice["index"]] = texts.get(choice["index"], "") + (said or "")
    return texts


def dialect_request(dialect: Dialect, **fields: Any) -> Request:
    """The same request in either dialect."""
    return chat(**fields) if dialect is Dialect.CHAT else completion(**fields)

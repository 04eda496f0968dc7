"""The driver between a conduct and a client that only a test has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, cast, get_args

import pytest

from nproxy.choices.commands import (
    Begin,
    CallEnded,
    CancelLeg,
    Command,
    Emit,
    FallBack,
    Finish,
    OpenLeg,
    Respond,
    SetTimer,
)
from nproxy.choices.events import Event, Failure, FailureKind, LegChunk, LegEnded, Stopped, Timer, TimerKind
from nproxy.choices.leg import Leg
from nproxy.choices.plan import Way
from nproxy.gateway import driver
from nproxy.gateway.driver import HANDLERS, Drive, OpenCall
from nproxy.gateway.record import Record
from nproxy.gateway.response_writer import ClientLeft
from nproxy.openai.errors import not_ready
from nproxy.upstreams.event_stream import Take

LEG = Leg(0, 0, 1)
WAY = Way("relay", 1)
OLD, NEW = LegChunk(0, b"of the call that was cancelled"), LegChunk(0, b"of the one made instead")


class Script:
    """In the place of the conduct: one call, another one instead at its first word, the end when that one ends."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def start(self) -> list[Command]:
        return [OpenLeg(LEG, 0, False)]

    def receive(self, events: Sequence[Event]) -> list[Command]:
        self.heard += events
        if any(isinstance(event, LegEnded) for event in events):
            return [Emit(b"x"), Finish("ok")]
        return [CancelLeg(0), OpenLeg(LEG, 1, False)] if self.heard == [OLD] else []


class Client:
    """In the place of the exchange. takes: whether what is written now is taken."""

    def __init__(self, *, takes: bool = True) -> None:
        self.takes = takes
        self.record = Record(0.0)
        self.now: list[bytes] = []  # written by write_now,
        self.waited: list[bytes] = []  # by write,
        self.last: list[bytes] = []  # and by finish
        self.responses: list[tuple[int, bytes]] = []
        self.response = None

    def shows(self, way: Way, headers: Iterable[tuple[str, str]] = ()) -> None:
        """The headers of the answer are nothing to these tests."""

    async def respond(self, status: int, body: bytes) -> None:
        self.responses.append((status, body))

    def write_now(self, data: bytes) -> bool:
        if self.takes:
            self.now.append(data)
        return self.takes

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)
        self.waited.append(data)

    async def finish(self, data: bytes) -> None:
        self.last.append(data)


class Gone(Client):
    """A client that has left, which is found out as it is written to."""

    def __init__(self) -> None:
        super().__init__(takes=False)

    async def write(self, data: bytes) -> None:
        raise ClientLeft


class Echo:
    """In the place of the conduct: writes what it hears. It fails at a chunk that says so."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def start(self) -> list[Command]:
        return [OpenLeg(LEG, 0, False)]

    def receive(self, events: Sequence[Event]) -> list[Command]:
        self.heard += events
        commands: list[Command] = []
        for event in events:
            if isinstance(event, LegChunk):
                if event.data == b"fail":
                    raise ValueError("the conduct is wrong")
                commands.append(Emit(event.data))
            elif isinstance(event, LegEnded):
                commands.append(Finish("ok"))
        return commands


class Once(Script):
    """In the place of the conduct: one call, and these commands with the first that it brings."""

    def __init__(self, *commands: Command) -> None:
        super().__init__()
        self.commands = [*commands]

    def receive(self, events: Sequence[Event]) -> list[Command]:
        return self.commands


class Fan:
    """In the place of the conduct: so many calls, and the end when the last of them ends. cancel: one before it."""

    def __init__(self, width: int, *, cancel: int | None = None) -> None:
        self.width, self.cancel = width, cancel
        self.ended = 0
        self.heard: list[Event] = []

    def start(self) -> list[Command]:
        return [OpenLeg(Leg(number, number, 1), 0, False) for number in range(self.width)]

    def receive(self, events: Sequence[Event]) -> list[Command]:
        self.heard += events
        if any(isinstance(event, Stopped) for event in events):
            return [*map(CancelLeg, range(self.width)), Respond(503, b"{}", WAY), Finish("ended")]
        self.ended += sum(isinstance(event, LegEnded) for event in events)
        commands: list[Command] = []
        if self.cancel is not None:
            commands.append(CancelLeg(self.cancel))
            self.cancel, self.ended = None, self.ended + 1
        if self.ended == self.width:
            commands.append(Finish("ok"))
        return commands


class Streamed(Client):
    """A client whose stream may begin. head: what was done with its head."""

    def __init__(self) -> None:
        super().__init__()
        self.head: list[str] = []
        self.end_status = 200

    def begin(self, status: int, headers: object) -> None:
        self.head.append("begun")

    def flush_head(self) -> None:
        self.head.append("flushed")


class Watch:
    """In the place of the observer, and of the judge of calls: how many are open, and how each ended."""

    def __init__(self) -> None:
        self.open = 0
        self.calls_ended: list[tuple[int, Failure | None]] = []
        self.judged: list[tuple[int, Failure | None]] = []
        self.running: set[Drive] = set()

    def leg_opened(self, leg: Leg, attempt: int) -> None:
        self.open += 1

    def leg_closed(self) -> None:
        self.open -= 1

    def batch(self, leg: int, events: list[Event]) -> None:
        pass

    def call_ended(self, leg: int, failure: Failure | None) -> None:
        self.calls_ended.append((leg, failure))

    def ended(self) -> None:
        assert not self.open and not self.running

    def judge(self, leg: int, failure: Failure | None) -> None:
        self.judged.append((leg, failure))


def driven(client: Client, conduct: object, open_call: OpenCall, watch: Watch | None = None) -> Drive:
    watch = watch or Watch()
    whatever = cast(Any, _ignore)
    return Drive(
        cast(Any, client), cast(Any, conduct), cast(Any, watch), open_call, whatever, watch.judge, watch.running
    )


def chunks(*said: bytes) -> list[Event]:
    return [LegChunk(0, data) for data in said]


async def turns() -> None:
    """Wait until whatever is on its way has come to rest, in turns of the loop: a clock cannot tell."""
    for _ in range(10):
        await asyncio.sleep(0)


async def run(client: Client, *batches: list[Event]) -> None:
    """Drive a call that hands over these batches, each when the one before it has been dealt with."""

    async def open_call(command: OpenLeg, take: Take) -> None:
        for batch in batches:
            await turns()
            take(batch)

    async with asyncio.timeout(5):
        await driven(client, Echo(), open_call).run()


async def test_pieces_of_text_are_passed_on_where_they_come() -> None:
    client = Client()
    await run(client, chunks(b"a", b"b"), chunks(b"c"), [*chunks(b"d"), LegEnded(0)])
    assert (client.now, client.waited, client.last) == ([b"ab", b"c"], [], [b"d"])


async def test_for_a_slow_client_the_driver_waits_and_nothing_is_lost_or_said_twice() -> None:
    client = Client(takes=False)
    await run(client, chunks(b"a"), chunks(b"b", b"c"), [*chunks(b"d"), LegEnded(0)])
    assert (client.now, client.waited, client.last) == ([], [b"a", b"bc"], [b"d"])


async def test_a_fault_in_the_conduct_ends_the_request() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await run(Client(), chunks(b"a"), chunks(b"fail"))
    assert caught.group_contains(ValueError, match="the conduct is wrong")


async def test_an_end_from_outside_is_an_event_like_others() -> None:
    client, fan, error = Client(), Fan(1), not_ready("enough")

    async def open_call(command: OpenLeg, take: Take) -> None:
        await turns()
        assert drive.end(error)
        take(chunks(b"a"))
        await asyncio.sleep(3600)

    drive = driven(client, fan, open_call)
    async with asyncio.timeout(5):
        await drive.run()
    assert fan.heard == [Stopped(error), *chunks(b"a")] and client.record.outcome == "ended"
    assert client.responses == [(503, b"{}")] and client.now == client.waited == client.last == []


@pytest.mark.parametrize(("client", "raised"), [(Client(), asyncio.CancelledError), (Gone(), ClientLeft)])
async def test_the_conduct_is_told_that_the_client_has_left_after_what_had_come(
    client: Client, raised: type[BaseException]
) -> None:
    """So it can still say what the request has cost."""

    async def open_call(command: OpenLeg, take: Take) -> None:
        await turns()
        take(chunks(b"a"))
        if raised is asyncio.CancelledError:
            running.cancel()
        await asyncio.sleep(3600)

    echo = Echo()
    running = asyncio.create_task(driven(client, echo, open_call).run())
    async with asyncio.timeout(5):
        with pytest.raises(raised):
            await running
    assert echo.heard == [*chunks(b"a"), Stopped()]


@pytest.mark.parametrize("falls_back", [True, False])
async def test_an_end_from_outside_in_the_turn_of_the_end(falls_back: bool) -> None:
    """What was decided is told. If another upstream is to be asked, the caller is told that the end comes too late."""
    client, ends = Client(), list[bool]()

    async def open_call(command: OpenLeg, take: Take) -> None:
        await turns()
        take(chunks(b"a"))
        asyncio.get_running_loop().call_soon(lambda: ends.append(drive.end(not_ready("enough"))))

    fall_back: list[Command] = [FallBack((Respond(502, b"{}", WAY), Finish(FailureKind.CUT)))] if falls_back else []
    drive = driven(client, Once(*fall_back, Finish("ok")), open_call)
    async with asyncio.timeout(5):
        await drive.run()
    assert (drive.fell_back is not None) is falls_back and ends == [not falls_back]
    assert client.last == ([] if falls_back else [b""])


async def test_after_an_end_from_outside_no_call_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "BUSY_TURN", inf)
    made: list[int] = []

    async def open_call(command: OpenLeg, take: Take) -> None:
        made.append(command.leg.number)
        if len(made) == 3:
            drive.end(not_ready("enough"))
        await asyncio.sleep(3600)

    client = Client()
    drive = driven(client, Fan(9), open_call)
    async with asyncio.timeout(5):
        await drive.run()
    assert made in ([0, 1, 2], [0, 1, 2, 3])  # one may have been on its way


async def test_a_call_is_not_heard_behind_its_cancellation() -> None:
    async def open_call(command: OpenLeg, take: Take) -> None:
        if command.attempt:
            take([NEW, LegEnded(0)])
            return
        take([OLD])
        try:
            await asyncio.sleep(3600)
        finally:
            take([OLD])  # a segment that was read before the socket was closed

    script, client = Script(), Client()
    async with asyncio.timeout(5):
        await driven(client, script, open_call).run()
    assert script.heard == [OLD, NEW, LegEnded(0)] and client.record.attempts == 2
    assert client.last == [b"x"]


@pytest.mark.parametrize(("long_turn", "opened"), [(inf, [1] * 20), (0.0, [8, 8, 4])])
async def test_many_calls_are_opened_in_several_turns(
    monkeypatch: pytest.MonkeyPatch, long_turn: float, opened: list[int]
) -> None:
    """One in each, and where turns are long several: what comes meanwhile is dealt with between them."""
    monkeypatch.setattr(driver, "BUSY_TURN", long_turn)
    turn, seen = 0, list[int]()

    async def open_call(command: OpenLeg, take: Take) -> None:
        seen.append(turn)
        while len(seen) < 20:
            await asyncio.sleep(0)
        take([LegEnded(command.leg.number)])

    running = asyncio.create_task(driven(Client(), Fan(20), open_call).run())
    while not running.done():
        await asyncio.sleep(0)
        turn += 1
    await running
    assert [seen.count(number) for number in dict.fromkeys(seen)] == opened


async def test_what_follows_from_no_event_at_all_is_delivered() -> None:
    """Nothing needs to be called where the answer is known."""

    class Known(Script):
        def start(self) -> list[Command]:
            return [Respond(200, b"{}", WAY), Finish("ok")]

    client = Client()
    async with asyncio.timeout(5):
        await driven(client, Known(), cast(Any, _ignore)).run()
    assert client.responses == [(200, b"{}")]


async def test_a_call_that_breaks_the_request_leaves_none_to_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "BUSY_TURN", inf)
    made: list[int] = []

    async def open_call(command: OpenLeg, take: Take) -> None:
        made.append(command.leg.number)
        if len(made) == 3:
            raise ValueError("a fault of ours")
        await asyncio.sleep(3600)

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(5):
            await driven(Client(), Fan(9), open_call).run()
    assert caught.group_contains(ValueError, match="a fault of ours") and made == [0, 1, 2]


async def test_a_call_that_is_cancelled_before_its_turn_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "BUSY_TURN", inf)
    made: list[int] = []

    async def open_call(command: OpenLeg, take: Take) -> None:
        made.append(command.leg.number)
        take([LegEnded(command.leg.number)])

    client = Client()
    async with asyncio.timeout(5):
        await driven(client, Fan(9, cancel=7), open_call).run()
    assert made == [0, 1, 2, 3, 4, 5, 6, 8] and client.record.attempts == 8


async def test_a_head_without_output_behind_it_is_sent_and_the_log_is_told_how_the_stream_ended() -> None:
    class Opening(Script):
        def receive(self, events: Sequence[Event]) -> list[Command]:
            ended = any(isinstance(event, LegEnded) for event in events)
            return [Finish(FailureKind.CUT, 502)] if ended else [Begin(WAY)]

    async def open_call(command: OpenLeg, take: Take) -> None:
        await turns()
        take(chunks(b"only a role"))
        await turns()
        assert client.head == ["begun", "flushed"]
        take([LegEnded(0)])

    client = Streamed()
    async with asyncio.timeout(5):
        await driven(client, Opening(), open_call).run()
    assert (client.record.outcome, client.record.end_status) == (FailureKind.CUT, 502)


async def test_every_call_that_was_opened_is_closed_and_those_that_ended_are_judged() -> None:
    async def open_call(command: OpenLeg, take: Take) -> None:
        await turns()
        if command.leg.number == 2:
            take([LegEnded(2)])
        await asyncio.sleep(3600)

    failure = Failure(FailureKind.RESET, "It broke.")
    ended = [CallEnded(2), CallEnded(1, failure)]

    class Ending(Fan):
        def receive(self, events: Sequence[Event]) -> list[Command]:
            return [CancelLeg(0), *ended, Finish("ok")]

    watch = Watch()
    async with asyncio.timeout(5):
        await driven(Client(), Ending(3), open_call, watch).run()
    assert watch.open == 0, "those that were cancelled too"
    assert watch.judged == watch.calls_ended == [(2, None), (1, failure)]


class Timed(Script):
    """In the place of the conduct: a timer, and the answer."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def start(self) -> list[Command]:
        return [SetTimer(Timer(TimerKind.HEADERS), self.seconds), Respond(200, b"{}", WAY), Finish("ok")]


@pytest.mark.parametrize(("seconds", "cancelled"), [(30.0, [True]), (inf, [])])
async def test_no_timer_is_left_behind_and_one_that_never_fires_is_not_set(
    monkeypatch: pytest.MonkeyPatch, seconds: float, cancelled: list[bool]
) -> None:
    loop = asyncio.get_running_loop()
    call_later, timers = loop.call_later, list[asyncio.TimerHandle]()

    def noted(*args: Any) -> asyncio.TimerHandle:
        timers.append(call_later(*args))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", noted)
    await driven(Client(), Timed(seconds), cast(Any, _ignore)).run()
    assert [timer.cancelled() for timer in timers] == cancelled


async def test_a_fault_in_the_conduct_leaves_no_call_to_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "BUSY_TURN", inf)
    made: list[int] = []
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    async def open_call(command: OpenLeg, take: Take) -> None:
        made.append(command.leg.number)
        take(chunks(b"a"))
        await asyncio.sleep(3600)

    class Faulty(Fan):
        def receive(self, events: Sequence[Event]) -> list[Command]:
            raise ValueError("the conduct is wrong")

    with pytest.raises(ExceptionGroup):
        async with asyncio.timeout(5):
            await driven(Client(), Faulty(30), open_call).run()
    await turns()
    assert len(made) < 30 and faults == []


def _ignore(*_: object) -> None:
    """What nobody looks at here."""


def test_every_command_is_carried_out() -> None:
    assert {*HANDLERS, Emit, Begin} == {*get_args(Command)}

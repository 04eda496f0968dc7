"""What one request adds to the metrics, by a clock of the test's."""

from __future__ import annotations

import pytest

from nproxy.choices.commands import Spent
from nproxy.choices.events import Failure, FailureKind, LegChunk
from nproxy.choices.leg import Leg
from nproxy.gateway.observe import Observer
from nproxy.gateway.record import Record
from nproxy.telemetry.metrics import Metrics

CALL = ("chat/completions", "u", "m")


class Scene:
    """An observer whose clock stands at `now`; `ended` has what was told of each call's end."""

    def __init__(self) -> None:
        self.metrics = Metrics(version="1", upstreams=["u"], models=["m"])
        self.ended: list[tuple[int, str]] = []
        self.now = 100.0
        self.record = Record(self.now, endpoint=CALL[0], upstream="u", model="m", outcome="ok", choices=1)
        self.observer = Observer(self.metrics, self.record, self, lambda *how: self.ended.append(how[:2]))
        self.observer._clock = lambda: self.now

    def spent_at_least(self, tokens: int) -> None:
        """Nobody is charged."""

    def spend(self, prompt: int, completion: int) -> None:
        """Nobody is charged."""

    def at(self, seconds: float) -> Observer:
        """So many seconds after the request came."""
        self.now = 100.0 + seconds
        return self.observer

    def told(self, name: str, end: str, **labels: str) -> float:
        samples = self.metrics.report()[name].samples.items()
        return sum(
            value
            for (sample, having), value in samples
            if sample == name + end and labels.items() <= dict(having).items()
        )


@pytest.fixture
async def scene() -> Scene:
    return Scene()


PER_TOKEN = "gen_ai_server_time_per_output_token_seconds"


def streamed(scene: Scene, *, legs: int, completion: int) -> None:
    """Each leg's first event comes after 1 s, its last after 4 s."""
    for leg in range(legs):
        scene.at(0.0).leg_opened(Leg(number=leg, offset=leg, width=1), 0)
    for seconds in (1.0, 2.5, 4.0):
        for leg in range(legs):
            scene.at(seconds).batch(leg, [LegChunk(leg, b"x")])
    for leg in range(legs):
        scene.at(4.0).call_ended(leg, None)
    scene.record.choices = legs
    scene.observer.spent(Spent(5, completion, 5 * legs, completion))


@pytest.mark.parametrize("legs", [1, 4])
async def test_time_per_token_is_that_of_a_choice_behind_its_first(scene: Scene, legs: int) -> None:
    streamed(scene, legs=legs, completion=31 * legs)
    scene.observer.ended()
    assert scene.told(PER_TOKEN, "_count") == 1
    assert scene.told(PER_TOKEN, "_sum") == pytest.approx(3.0 / 30)


async def test_time_per_token_leaves_out_how_long_a_call_waited_for_another(scene: Scene) -> None:
    for leg in range(4):
        scene.at(5.0 * leg).leg_opened(Leg(number=leg, offset=leg, width=1), 0)
        for seconds in (1.0, 4.0):
            scene.at(5.0 * leg + seconds).batch(leg, [LegChunk(leg, b"x")])
        scene.observer.call_ended(leg, None)
    scene.record.choices = 4
    scene.observer.spent(Spent(5, 124, 20, 124))
    scene.observer.ended()
    assert scene.told(PER_TOKEN, "_sum") == pytest.approx(3.0 / 30)


async def test_none_of_what_failed_nor_of_one_token(scene: Scene) -> None:
    streamed(scene, legs=1, completion=31)
    scene.record.outcome = "timeout"
    scene.observer.ended()
    assert scene.told(PER_TOKEN, "_count") == 0
    other = Scene()
    streamed(other, legs=2, completion=2)
    other.observer.ended()
    assert other.told(PER_TOKEN, "_count") == 0


@pytest.mark.parametrize(("kind", "ours", "count"), [("connect", True, 1), ("connect", False, 0), ("reset", True, 0)])
async def test_a_call_that_the_gateway_could_not_make_is_counted_as_its_own(
    scene: Scene, kind: str, ours: bool, count: int
) -> None:
    scene.at(0.0).leg_opened(Leg(number=0, offset=0, width=1), 0)
    scene.at(1.0).call_ended(0, Failure(FailureKind(kind), "why", ours=ours))
    assert scene.told("nproxy_requests_refused", "_total", reason="calls") == count


async def test_each_call_is_counted_once_and_timed_from_its_own_opening(scene: Scene) -> None:
    leg = Leg(number=0, offset=0, width=1)
    scene.at(0.0).leg_opened(leg, 0)
    scene.at(2.0).call_ended(0, Failure(FailureKind.TIMEOUT, "late"))
    scene.at(3.0).leg_opened(leg, 1)
    scene.at(7.0).ended()
    scene.observer.call_ended(0, None)
    assert scene.ended == [(0, "timeout"), (0, "cancelled")]
    duration = "gen_ai_client_operation_duration_seconds"
    assert [scene.told(duration, "_sum", error_type=how) for how in ("timeout", "cancelled", "")] == [2.0, 4.0, 0.0]
    assert scene.told("nproxy_legs", "_total") == 2

"""What the end of a call says of its replica."""

from __future__ import annotations

import pytest

from nproxy.choices.events import Failure, FailureKind
from nproxy.upstreams.verdicts import broken, outcome_of, serves

FAILED = {"connect", "connect_timeout", "reset", "down", "timeout", "cut", "malformed", "short"}


def test_a_call_that_brought_what_it_should() -> None:
    assert serves(None) is True


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - {"status", "in_band"}))
def test_kinds(kind: str) -> None:
    assert serves(Failure(FailureKind(kind), "it failed")) is (False if kind in FAILED else None)


@pytest.mark.parametrize("kind", sorted(FAILED))
def test_what_this_process_had_not_the_means_for(kind: str) -> None:
    assert serves(Failure(FailureKind(kind), "it failed", ours=True)) is None


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(400, True), (401, True), (408, True), (422, True), (429, None), (500, False), (501, None), (503, False)],
)
def test_statuses(status: int, verdict: bool | None) -> None:
    for kind in (FailureKind.STATUS, FailureKind.IN_BAND):
        assert serves(Failure(kind, "it failed", status=status)) is verdict


def test_an_error_within_an_answer_that_tells_no_status_is_the_servers() -> None:
    assert serves(Failure(FailureKind.IN_BAND, "it failed")) is False


def test_how_a_call_ended() -> None:
    assert outcome_of(None) == "ok"
    assert outcome_of(Failure(FailureKind.TIMEOUT, "it failed")) == "timeout"
    assert outcome_of(Failure(FailureKind.IN_BAND, "it failed", status=400)) == "in_band"


@pytest.mark.parametrize(
    ("status", "own_key", "outcome"),
    [
        (400, True, "client_error"),
        (499, False, "client_error"),
        (401, False, "client_error"),
        (401, True, "status"),
        (429, False, "status"),
        (500, False, "status"),
    ],
)
def test_how_a_refused_call_ended(status: int, own_key: bool, outcome: str) -> None:
    assert outcome_of(Failure(FailureKind.STATUS, "it failed", status=status, own_key=own_key)) == outcome


@pytest.mark.parametrize("status", [400, 429, 500, 502, 503, 504])
def test_an_error_answer_tells_of_capacity_unless_a_proxy_gave_it(status: int) -> None:
    assert broken(Failure(FailureKind.STATUS, "it failed", status=status)) is (status in (502, 504))
    assert broken(Failure(FailureKind.IN_BAND, "it failed", status=status))

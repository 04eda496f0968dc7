"""What the end of a call says of its replica."""

from __future__ import annotations

import pytest

from nproxy.choices.events import Failure, FailureKind
from nproxy.upstreams.verdicts import serves

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

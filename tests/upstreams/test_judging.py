"""What the end of a call says of its replica."""

from __future__ import annotations

import pytest

from nproxy.choices.events import Failure, FailureKind
from nproxy.upstreams.judging import serves

FAILED = {"connect", "reset", "down", "timeout", "cut", "malformed", "short"}


def test_a_call_that_brought_what_it_should() -> None:
    assert serves(None) is True


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - {"status", "in_band"}))
def test_kinds(kind: str) -> None:
    assert serves(Failure(FailureKind(kind), "it failed")) is (False if kind in FAILED else None)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(400, True), (401, True), (408, True), (422, True), (429, None), (500, False), (501, None), (503, False)],
)
def test_statuses(status: int, verdict: bool | None) -> None:
    assert serves(Failure(FailureKind.STATUS, "it failed", status=status)) is verdict


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (b'{"error": {"message": "x", "code": 500}}', False),
        (b'{"error": {"message": "x", "code": 400}}', True),
        (b'{"error": {"message": "x", "code": "context_length"}}', False),
        (b'{"error": "x"}', False),
        (b"[]", False),
        (b"no json", False),
    ],
)
def test_errors_in_the_midst_of_an_answer(body: bytes, verdict: bool) -> None:
    assert serves(Failure(FailureKind.IN_BAND, "it failed", body=body)) is verdict

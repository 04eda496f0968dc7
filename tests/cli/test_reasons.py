"""Why a server gave no answer, in a few words."""

from __future__ import annotations

import pytest

from nproxy.cli.reasons import reason


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(111, "Refused"), "connection refused"),
        (OSError(None, "No Such Host"), "no such host"),
        (ValueError("Not\x1b a URL"), "not a url"),
        (TimeoutError(), "timeouterror"),
    ],
)
def test_an_error_without_a_message_has_its_name(error: Exception, said: str) -> None:
    assert reason(error) == said


def test_the_innermost_cause_is_told() -> None:
    outer = RuntimeError("It did not work.")
    outer.__cause__ = ValueError("Because")
    assert reason(outer) == "because"

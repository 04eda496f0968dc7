"""Numbers and texts that no command can do anything with are refused where they are typed."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from nproxy.cli import main

URL = "http://127.0.0.1:1"
NOT_UTF_8 = "a\udcff"


@pytest.mark.parametrize("command", [["chat", "--url", URL, "hi"], ["probe", URL], ["bench", URL]])
@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "0", "-1"])
def test_seconds(command: list[str], seconds: str) -> None:
    assert_wrong([*command, f"--timeout={seconds}"], "--timeout")


@pytest.mark.parametrize(
    "words",
    [
        *(("chat", "hi", "--temperature", bad) for bad in ("nan", "inf", "-1")),
        *(("bench", URL, "--temperature", bad) for bad in ("nan", "inf", "-1")),
        *(("bench", URL, "--rate", bad) for bad in ("nan", "inf", "0", "1e-300", "1e300")),
        *(("bench", URL, "--rate", "1", "--burstiness", bad) for bad in ("nan", "inf", "0", "1e300")),
        *(("bench", URL, "--seconds", bad) for bad in ("nan", "inf", "0")),
        ("chat", "hi", "--system", NOT_UTF_8),
        ("chat", "hi", "--model", NOT_UTF_8),
        ("probe", URL, "--model", NOT_UTF_8),
        ("bench", URL, "--prompt", NOT_UTF_8),
        ("bench", URL, "--model", NOT_UTF_8),
    ],
)
def test_numbers_and_texts(words: tuple[str, ...]) -> None:
    assert_wrong([*words], words[-2])


def test_a_prompt_that_is_not_utf_8() -> None:
    assert_wrong(["chat", NOT_UTF_8], "it is not valid UTF-8")


def test_a_model_without_a_name() -> None:
    done = CliRunner().invoke(main, ["models", "pull", ""])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("nproxy: model : neither ")


def assert_wrong(words: list[str], told: str) -> None:
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert told in done.stderr

"""How long an upstream asks us to wait."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from nproxy.upstreams.retry_after import retry_after, wait_in

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "Fri, 20 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Fri, 20 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1_0"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "later"}, None),
        ({"retry-after": "Mon, 01 Jan 20000000030 00:00:00 GMT"}, None),
        ({"retry-after": "Fri, 20 Nov 2026 12:00:30 +99999999999999"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


def test_a_date_counts_from_now() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert retry_after({"retry-after": later}) == pytest.approx(3600, abs=60)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (
            "Rate limit reached for gpt-4o in organization o (TPM). Please try again in 1.2s. Visit",
            1.2,
        ),
        ("Please try again in 20ms. Visit https://platform.openai.com/account/rate-limits to learn more.", 0.02),
        ("Please try again in 6m0.5s.", 360.5),
        ("Your account reached max organization concurrency: 1, please try again after 1 seconds", 1.0),
        ("Please retry after 6 seconds. Please contact Azure support", 6.0),
        ("retry in 2 minutes", 120.0),
        ("Try again in 1h", 3600.0),
        ("Try again in 1 min 30 s", 90.0),
        ("Try again in 1 hour, 2 minutes and 3 seconds", 3723.0),
        ("Try again in 30", 30.0),
        ("Please try again in 2.7600000000000002s.", 2.76),
        ("Please wait 57 seconds before retrying.", 57.0),
        ("Try again in about 5 seconds", 5.0),
        ('{"retryDelay" : "34s"}', 34.0),
        (r'"{\"retryDelay\": \"34s\"}"', 34.0),
        ("retry after 2024-01-01", None),
        ("retry after 12:30 UTC", None),
        ("Try again in 00:00:05", None),
        ("Try again in 1-2 minutes", None),
        ("Try again in 1,000 seconds", None),
        ("retry after 5%", None),
        ("Try again in 30 more seconds", None),
        ("Try again in 5 micros", None),
        ("Try again in 30more", None),
        ("try again after 250 milliseconds", 0.25),
        ("try again in 7", 7.0),
        ("try again in 7 days", 7.0 * 24 * 3600),
        ("try again in 7 parsecs", None),
        ('[{"error": {"code": 429, "details": [{"@type": "RetryInfo", "retryDelay": "41.5s"}]}}]', 41.5),
        ('{"retryDelay":"0s"}', 0.0),
        ("The queue is full, try again in a while.", None),
        ("I'd retry it in 5 s", None),
        ("", None),
    ],
)
def test_seconds_that_an_error_tells_in_its_words(words: str, seconds: float | None) -> None:
    found = wait_in(words.encode())
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_a_number_of_many_digits_is_no_endless_wait() -> None:
    told = wait_in(b"try again in " + b"1" * 65536 + b"!")
    assert told is not None and told < 1e10

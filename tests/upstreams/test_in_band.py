"""An error within a 200: one reading says whose fault it is, for further attempts and for the replica."""

from __future__ import annotations

from typing import Any

import pytest

from nproxy.choices.failures import upstreams_own
from nproxy.choices.retry import resumable, retryable
from nproxy.upstreams.verdicts import serves
from tests.choices.upstream_says import in_band

ROWS: list[tuple[Any, int]] = [
    ({"code": 500}, 500),
    ({"code": 502}, 502),
    ({"code": "503"}, 503),
    ({"status": 504}, 504),
    ({"status_code": "529"}, 529),
    ({"code": None, "type": "500"}, 500),
    ({"code": 599}, 599),
    ({"code": 400}, 400),
    ({"code": "400"}, 400),
    ({"status": "422"}, 422),
    ({"code": "429"}, 429),
    ({"code": 501}, 501),
    ({"code": 400, "status": 500}, 400),
    ({"code": 500, "type": "invalid_request_error"}, 500),
    ({"message": "died"}, 500),
    ({"message": "an invalid state, 400 of them"}, 500),
    ({"type": "server_error"}, 500),
    ({"code": 1302, "type": "overloaded"}, 500),
    ({"code": "\u00b2\u00b2\u00b2"}, 500),
    ({"code": "9" * 5000}, 500),
    ({"code": 200}, 500),
    ({"code": 399}, 500),
    ({"code": 600}, 500),
    ({"code": 200, "type": "invalid_request_error"}, 400),
    ({"code": 1302, "type": "invalid_request_error"}, 400),
    ({"type": "BadRequestError"}, 400),
    ({"type": "ValidationError"}, 400),
    ({"type": "not_found_error"}, 400),
    ({"type": "permission_error"}, 400),
    ({"type": "authentication_error"}, 400),
    ({"code": "context_length_exceeded"}, 400),
    ({"code": "prompt_too_long"}, 400),
    ({"type": "rate_limit_error"}, 429),
    ({"type": "invalid_request_error", "code": "rate_limit_exceeded"}, 429),
    ({"type": "TooManyRequests"}, 429),
    ({"type": "insufficient_quota"}, 429),
    ({"code": "content_filter"}, 400),
    ({"code": "content_policy_violation"}, 400),
    ("died", 500),
    (b"died", 500),
    (b'["died"]', 500),
    (b'{"object": "error", "message": "died", "code": 503}', 503),
    (b'{"object": "error", "message": "no", "type": "BadRequestError"}', 400),
]
SAYS_NOTHING = (429, 501)


@pytest.mark.parametrize(("error", "status"), ROWS, ids=[str(error)[:60] for error, _ in ROWS])
def test_whose_fault_it_is(error: Any, status: int) -> None:
    why = in_band(error)
    servers = status >= 500
    assert why.status == status
    assert (retryable(why), resumable(why)) == (servers,) * 2
    assert upstreams_own(why) is (servers or status == 429), "another upstream may have room"
    assert serves(why) is (None if status in SAYS_NOTHING else not servers)

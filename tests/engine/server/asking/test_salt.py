"""Prompts are shared by those who show the same key and the same salt."""

from __future__ import annotations

import pytest

from engine.server.asking.salt import salt_of
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON

WHO = [
    ({"authorization": "Bearer a"}, {}),
    ({"authorization": "Bearer b"}, {}),
    ({"api-key": "Bearer a"}, {}),
    ({"x-api-key": "Bearer a"}, {}),
    ({"authorization": "Bearer a"}, {"cache_salt": "x"}),
    ({}, {"cache_salt": "x"}),
    ({}, {"cache_salt": "Bearer a"}),
    ({}, {"cache_salt": "\ud800"}),
]


def test_every_key_and_every_salt_is_another() -> None:
    assert len({"", *(salt_of(headers, fields) for headers, fields in WHO)}) == 1 + len(WHO)
    assert salt_of(*WHO[3]) == salt_of({**WHO[3][0], "accept": "*/*"}, {**WHO[3][1], "model": "m"})


def test_without_both_all_share() -> None:
    assert salt_of({"accept": "*/*"}, {"cache_salt": None}) == ""


def test_no_key_stands_in_a_salt() -> None:
    assert "secret" not in salt_of({"authorization": "secret"}, {})


@pytest.mark.parametrize("given", [5, "", ["x"]])
def test_what_is_no_salt(given: JSON) -> None:
    with pytest.raises(ApiError) as refused:
        salt_of({}, {"cache_salt": given})
    assert (refused.value.status, refused.value.param) == (400, "cache_salt")

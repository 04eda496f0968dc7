"""Fields that change nothing: any dialect takes them, with the type that they are to have."""

from __future__ import annotations

from typing import Any

import pytest

from engine.server.asking.fields import check_fields
from engine.server.asking.harmless import HARMLESS
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError

RIGHT: dict[str, Any] = {
    "guided_decoding_backend": "guidance",
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "request_id": "r",
    "safety_identifier": "s",
    "service_tier": "auto",
    "store": True,
    "user": "u",
}


@pytest.mark.parametrize("dialect", Dialect)
def test_they_pass(dialect: Dialect) -> None:
    assert RIGHT.keys() == HARMLESS
    check_fields(dialect, RIGHT)
    check_fields(dialect, dict.fromkeys(HARMLESS))


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("name", sorted(HARMLESS))
@pytest.mark.parametrize("value", [5, ["a"], 0])
def test_another_type_is_refused(dialect: Dialect, name: str, value: Any) -> None:
    with pytest.raises(ApiError) as refused:
        check_fields(dialect, {name: value})
    assert (refused.value.status, refused.value.param) == (400, name)


@pytest.mark.parametrize(
    ("value", "param"), [({"a": 1}, "metadata.a"), ({str(key): "" for key in range(17)}, "metadata")]
)
def test_metadata_is_a_few_texts(value: Any, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        check_fields(Dialect.CHAT, {"metadata": value})
    assert refused.value.param == param

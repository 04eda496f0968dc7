"""The schema is the reference of the settings: every key of it is explained."""

from __future__ import annotations

import pytest

from nproxy.config import Config

SCHEMA = Config.model_json_schema()


KEYS = [(name, key) for name, part in SCHEMA["$defs"].items() for key in part["properties"]]


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_every_key_says_what_it_is(section: str, key: str) -> None:
    assert SCHEMA["$defs"][section]["properties"][key].get("description")


@pytest.mark.parametrize("section", list(SCHEMA["$defs"]))
def test_every_section_refuses_unknown_keys(section: str) -> None:
    assert SCHEMA["$defs"][section]["additionalProperties"] is False

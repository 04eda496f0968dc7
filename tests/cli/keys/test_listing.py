"""The table of keys on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from nproxy.cli.keys.listing import table
from nproxy.config import Key


def test_what_is_shown_of_hashes_can_be_copied_from_a_narrow_terminal() -> None:
    key = Key.model_validate({"name": "a-team-with-a-name", "hash": f"sha256:{'0123456789abcdef' * 4}", "choices": 12})
    out = io.StringIO()
    Console(file=out, width=40).print(table((key,)))
    assert "01234567" in out.getvalue()

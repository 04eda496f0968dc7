"""bench/gateway/turns: what is told of the rounds of several checkouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gateway import turns
from bench.gateway.figures import Round


def rounds(*cpu: float, first: float = 0.0) -> list[Round]:
    return [Round(1.0, us, first, first, 1.0, 0.5, 10) for us in cpu]


def test_ratios_are_of_rounds_beside_each_other() -> None:
    """A machine that is half as quick for a while changes no ratio, though the medians move."""
    found = {"whole-64": {"bare aiohttp": rounds(100, 200, 220, 90), "a": rounds(200, 400, 440, 170)}}
    head, _, bare, ours = turns.table(found).splitlines()
    assert head.startswith("| case | gateway | CPU us each: least | median | in bare relays |")
    assert bare == "| whole-64 | bare aiohttp | 90.0 | 150.0 | 1.000 | - | - |"
    assert ours == "| whole-64 | a | 170.0 | 300.0 | 2.000 | - | - |"


def test_first_words_are_told_where_there_are_any() -> None:
    table = turns.table({"first": {"bare aiohttp": rounds(1, first=0.25), "a": rounds(2, first=0.5)}})
    assert table.splitlines()[-1] == "| first | a | 2.0 | 2.0 | 2.000 | 0.500 | 0.500 |"


def test_a_folder_without_nproxy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is no checkout of nproxy"):
        turns.checkout(str(tmp_path))


def test_a_case_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        turns.main([".", "--only", "first,last"])
    assert "there is no last; there are whole-16, " in capsys.readouterr().err

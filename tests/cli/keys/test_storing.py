"""The file of keys is replaced whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from nproxy.cli.keys.storing import change
from nproxy.cli.wrong_use import WrongUse

KEYS = f"keys: [{{name: a, hash: sha256:{'a' * 64}}}]\n"


def test_a_change_that_is_not_valid_leaves_the_file_and_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(KEYS)
    with pytest.raises(WrongUse, match="is required"):
        change(file, lambda text, keys: "keys: [{name: a}]\n")
    assert file.read_text() == KEYS
    assert [*tmp_path.iterdir()] == [file]


def test_a_link_to_itself_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.symlink_to(file)
    with pytest.raises(WrongUse, match=r"keys\.yaml: too many levels of symbolic links"):
        change(file, lambda text, keys: text)

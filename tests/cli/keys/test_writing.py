"""Hashes and entries come and go in a file of keys, and the rest stands there still."""

from __future__ import annotations

from pathlib import Path

import pytest

from nproxy.cli.keys.writing import with_hash, without_entry, without_hash
from nproxy.cli.wrong_use import WrongUse
from nproxy.config import read_keys

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64
NEW = "sha256:" + "c" * 64

BLOCK = f"""# ours
keys:
  - name: a   # the first
    hash: {A}
    weight: 2

  # the second
  - name: b
    hash:
    - {B}  # since May
# the end
"""
FLOW = f"keys: [{{name: a, hash: {A}}}, {{name: b, hash: [{B}]}}]  # all\n"


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("", "n", f"keys:\n- name: n\n  hash: {NEW}\n"),
        ("# none yet\n", "n", f"# none yet\nkeys:\n- name: n\n  hash: {NEW}\n"),
        (
            BLOCK,
            "n",
            BLOCK.replace("# the end", f"  - name: n\n    hash: {NEW}\n# the end"),
        ),
        (BLOCK, "a", BLOCK.replace(A, f"[{A}, {NEW}]")),
        (BLOCK, "b", BLOCK.replace("# since May\n", f"# since May\n    - {NEW}\n")),
        (FLOW, "n", FLOW.replace("]}]", f"]}}, {{name: n, hash: {NEW}}}]")),
        (FLOW, "a", FLOW.replace(A, f"[{A}, {NEW}]")),
        (FLOW, "b", FLOW.replace(f"{B}]", f"{B}, {NEW}]")),
        (FLOW.removesuffix("\n"), "b", FLOW.removesuffix("\n").replace(f"{B}]", f"{B}, {NEW}]")),
        (f"keys:\n- name: a\n  hash: '{A}'", "n", f"keys:\n- name: a\n  hash: '{A}'\n- name: n\n  hash: {NEW}\n"),
        (f"keys:\n- {{name: a, hash: {A}}}\n", "n", f"keys:\n- {{name: a, hash: {A}}}\n- name: n\n  hash: {NEW}\n"),
    ],
)
def test_the_rest_stays_as_it_was(tmp_path: Path, text: str, name: str, expected: str) -> None:
    written = with_hash(text, name, NEW)
    assert written == expected
    file = tmp_path / "keys.yaml"
    file.write_text(written)
    (entry,) = [key for key in read_keys(file) if key.name == name]
    assert entry.hash[-1] == bytes.fromhex("cc" * 32)


ENTRY_A = f"  - name: a   # the first\n    hash: {A}\n    weight: 2\n"
ENTRY_B = f"  - name: b\n    hash:\n    - {B}  # since May\n"


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        (BLOCK, 0, BLOCK.replace(ENTRY_A, "")),
        (BLOCK, 1, BLOCK.replace(ENTRY_B, "")),
        (BLOCK.removesuffix("\n# the end\n"), 1, BLOCK.removesuffix(f"{ENTRY_B}# the end\n")),
        (FLOW, 0, f"keys: [{{name: b, hash: [{B}]}}]  # all\n"),
        (FLOW, 1, f"keys: [{{name: a, hash: {A}}}]  # all\n"),
        (f"keys:\n- name: a\n  hash: {A}\n-\n  name: b - c\n  hash: {B}", 1, f"keys:\n- name: a\n  hash: {A}\n"),
        (
            f"keys:\n- {{name: a, hash: {A}}}\n- {{name: b,\n   hash: {B}}}\n",
            0,
            f"keys:\n- {{name: b,\n   hash: {B}}}\n",
        ),
    ],
)
def test_an_entry_goes(text: str, position: int, expected: str) -> None:
    assert without_entry(text, position) == expected


@pytest.mark.parametrize(
    ("hashes", "at", "expected"),
    [
        (f" [{A}, {B}]", 0, f" [{B}]"),
        (f" [{A}, {B}]", 1, f" [{A}]"),
        (f"\n  - {A}  # old\n  - {B}", 0, f"\n  - {B}"),
        (f"\n  - {A}\n  # new\n  - {B}", 1, f"\n  - {A}\n  # new"),
    ],
)
def test_a_hash_goes(hashes: str, at: int, expected: str) -> None:
    text = "keys:\n- name: a\n  hash:{}\n  weight: 2 # more\n"
    assert without_hash(text.format(hashes), 0, at) == text.format(expected)


@pytest.mark.parametrize("position", [0, 1])
def test_what_aliases_refer_to_is_left_to_the_user(position: int) -> None:
    text = f"keys:\n- name: a\n  hash: {A}\n  models: &ours [m]\n- name: b\n  hash: {B}\n  models: *ours\n"
    with pytest.raises(WrongUse, match="please edit it"):
        without_entry(text, position)

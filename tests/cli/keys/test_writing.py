"""A hash is added to a file of keys, and what stood there stands there still."""

from __future__ import annotations

from pathlib import Path

import pytest

from nproxy.cli.keys.writing import with_hash
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

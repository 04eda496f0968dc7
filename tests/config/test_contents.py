"""Files that settings are read from: what nobody writes to holds nothing up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nproxy.config import Source

BASE = "upstreams:\n- name: a\n  replicas: [http://a]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: it is a named pipe"),
        (BASE + "  api_key: file:pipe\n", "cannot read {folder}/pipe: it is a named pipe"),
        (BASE + "auth: {api_keys_file: pipe}\n", "cannot read {folder}/pipe: it is a named pipe"),
        (
            BASE + "listen: {tls: {certificate: pipe, key: pipe}}\n",
            "cannot read {folder}/pipe: it is a named pipe",
        ),
    ],
    ids=["settings", "secret", "keys", "certificate"],
)
@pytest.mark.timeout(30)
def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path, text: str | None, said: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = tmp_path / "pipe"
    if text is not None:
        file = tmp_path / "nproxy.yaml"
        file.write_text(text)
    reading = Source(file, {}).read()
    assert reading.config is None and any(said.format(folder=tmp_path) in str(one) for one in reading.problems)


def test_the_pipe_of_a_shell_is_read() -> None:
    script = f"cat <<END | {sys.executable} -m nproxy check /dev/stdin\n{BASE}END\n"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_settings_from_a_shells_pipe_are_read_once() -> None:
    """Its second reading is empty, and empty settings can be valid: with options, and without any key."""
    end, other = os.pipe()
    try:
        os.write(other, BASE.encode())
        os.close(other)
        reading = Source(Path(f"/dev/fd/{end}"), {}).read()
        assert reading.config is not None
        again = reading.again()
    finally:
        os.close(end)
    assert again.config is None and "is a pipe, which can be read only once" in str(again.problems[0])


def test_a_keys_file_is_no_pipe_because_it_is_read_again(tmp_path: Path) -> None:
    end, other = os.pipe()
    try:
        os.write(other, b"keys:\n- {name: a, key: abc}\n")
        os.close(other)
        file = tmp_path / "nproxy.yaml"
        file.write_text(BASE + f"auth: {{api_keys_file: /dev/fd/{end}}}\n")
        reading = Source(file, {}).read()
    finally:
        os.close(end)
    assert reading.config is None and f"cannot read /dev/fd/{end} twice: it is a pipe" in str(reading.problems[0])

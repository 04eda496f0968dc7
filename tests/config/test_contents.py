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

"""Completion as a shell has it: the script is sourced, and the tab key pressed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent

PRESS_TAB = """
eval "$(nproxy completion bash)"
COMP_WORDS=({words}) COMP_CWORD={last}
_nproxy_completion nproxy
echo "${{COMPREPLY[@]}}"
"""
MARKS = {"bash": "complete -o nosort -F _nproxy_completion nproxy", "zsh": "#compdef nproxy", "fish": "complete"}


def shell(name: str, script: str) -> str:
    """What a shell prints that finds this environment's nproxy."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run([name, "-c", script], capture_output=True, text=True, env=environment, timeout=60, check=True)
    return done.stdout


@pytest.mark.parametrize("name", MARKS)
def test_the_script_is_for_this_shell(name: str) -> None:
    script = shell("sh", f"nproxy completion {name}")
    assert MARKS[name] in script
    assert "_NPROXY_COMPLETE" in script


@pytest.mark.parametrize(
    ("words", "found"),
    [("nproxy ch", {"chat", "check"}), ("nproxy models re", {"remove"}), ("nproxy chat --max-t", {"--max-tokens"})],
)
def test_bash_completes(words: str, found: set[str]) -> None:
    assert set(shell("bash", PRESS_TAB.format(words=words, last=len(words.split()) - 1)).split()) >= found


def test_another_shell_is_wrong_use() -> None:
    done = subprocess.run(
        [BIN / "nproxy", "completion", "csh"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in done.stderr

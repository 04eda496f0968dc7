"""Both sides of the exchange of lines: the child's and the parent's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.engine.cells import Answer, Asked, WrongAnswer
from tests.real.processes import ROOT

_END_SECONDS = 30.0


def answer_lines(load: Callable[[], tuple[Mapping[str, str], Callable[[Asked], Answer]]]) -> None:
    """Load, and answer until standard input ends. What libraries print to standard output goes to standard error."""
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    versions, answer = load()
    print(json.dumps({"ready": versions}), file=told)
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = tuple(tuple(prompt) for prompt in asked["prompts"])
        try:
            reply = asdict(answer(Asked(prompts, asked["n"], asked["new"])))
        except Exception as error:  # report whatever a library raises; the next line may succeed
            reply = {"wrong": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=told)


class Child:
    """A child process that has loaded its model. versions: of the packages that it uses."""

    def __init__(self, process: subprocess.Popen[str], versions: Mapping[str, str]) -> None:
        self.versions = versions
        self.pid = process.pid
        self._process = process

    @classmethod
    @contextmanager
    def started(cls, name: str, words: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[Child]:
        """Run inside/NAME.py with these arguments; raises RuntimeError if it ends before it has loaded."""
        argv = [sys.executable, "-P", "-m", f"bench.engine.inside.{name}", *words]
        with log.open("wb") as err:
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, cwd=ROOT, env=dict(env)
            )
        try:
            yield cls(process, _line(process, log)["ready"])
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def ask(self, asked: Asked) -> Answer:
        """Ask the child. Raises WrongAnswer with the child's reason, or if the child has ended."""
        assert self._process.stdin is not None
        try:
            print(json.dumps(asdict(asked)), file=self._process.stdin, flush=True)
            reply = _line(self._process, None)
        except (OSError, RuntimeError) as error:
            raise WrongAnswer(f"it has ended with exit code {self._process.poll()}") from error
        if "wrong" in reply:
            raise WrongAnswer(reply["wrong"])
        return Answer(**reply)


def _line(process: subprocess.Popen[str], log: Path | None) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait()
        raise RuntimeError((log.read_text(errors="replace").strip() if log else "").rpartition("\n")[2] or "it ended")
    read: dict[str, Any] = json.loads(line)
    return read

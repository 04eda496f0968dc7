"""Runs the blocks of a page in their order, as a reader would who types everything."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml
from openai import OpenAI

from nproxy.config import from_message, read_keys
from tests.docs import foreign
from tests.docs.blocks import Block
from tests.real.processes import END_SECONDS, ROOT, ended

SECONDS = 240.0
"""The time limit of a block; on an idle machine most blocks take a fraction of a second."""

_REFERENCES = re.compile(r"\$\{\w+\}")
_KEYS = ("ADMIN", "KEY", "VLLM_KEY", "FLEET_KEY", "CLOUD_KEY", "GEMINI_KEY", "GROQ_KEY", "MISTRAL_KEY")
_SECRET = "secret-of-the-page-01"
_PROGRAMS = "curl|docker|git|kill|kubectl|make|node|npm|nproxy|pipx?|python[.0-9]*|sh|uv"
_TYPED = re.compile(rf"(?m)^\s*(\$ |([A-Z_]+=\S* |sudo )*({_PROGRAMS})( [^>\n]*)?$)")
_SHOW_USAGE = ("docs/reference/cli.md",)
"""Pages that show the usage of commands; tests/cli runs their examples."""

_DIAGRAMS = ("flowchart", "sequenceDiagram", "stateDiagram-v2", "gantt")


class UnknownLanguage(Exception):
    """The tests do not know how to check a block in this language."""


class Reading:
    """The state of a page's blocks: a folder, replacements for the page's addresses and words, and what blocks left.

    words: replacements. port: where a gateway will listen that a block starts. engine: the address of the engine with
    the default model, for pages that begin with it; None for others.
    """

    def __init__(self, folder: Path, words: Mapping[str, str], port: int, engine: str | None) -> None:
        self.folder, self.words, self.port = folder, words, port
        self.gateway = engine or f"127.0.0.1:{port}"
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.notes = folder / "notes"
        self._programs = folder / "programs"
        for made in (self.notes, self._programs):
            made.mkdir()
        foreign.put(self._programs)

    def run(self, block: Block) -> str:
        """Run a block according to its language; return what it prints. Raises an error that says what is wrong."""
        match block.language:
            case "sh":
                return self._shell(block.text)
            case "python":
                return self._python(block)
            case "yaml":
                self._yaml(block.text)
            case "json":
                json.loads(block.text)
            case "mermaid":
                assert block.text.split()[0] in _DIAGRAMS, "no diagram that GitHub draws"
            case "text":  # shown and not typed: a command's output, a header, a formula
                assert block.page in _SHOW_USAGE or not _TYPED.search(block.text), "this is to be typed, so it is sh"
            case language:
                raise UnknownLanguage(f"no language in which blocks are tested: {language!r}")
        return ""

    def close(self) -> None:
        """Close the clients that blocks have left, and end the gateway that they have started."""
        for left in self.names.values():
            if isinstance(left, OpenAI):  # else its socket would be collected unclosed, in any later test
                left.close()
        if (serving := self.notes / "serving").exists():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(serving.read_text()))
                process.terminate()
                deadline = time.monotonic() + END_SECONDS
                while not ended(process):  # whether or not init has reaped it
                    assert time.monotonic() < deadline, "the gateway of a page does not end"
                    time.sleep(0.02)

    def here(self, text: str) -> str:
        """Return a text with the page's words and addresses replaced."""
        for word, here in {**self.words, "127.0.0.1:8000": self.gateway}.items():
            text = text.replace(word, here)
        return text

    def _shell(self, text: str) -> str:
        if re.search(r"(?m)^nproxy serve", text):
            self.gateway = f"127.0.0.1:{self.port}"
        env = {name: value for name, value in os.environ.items() if name == "NPROXY_CACHE" or "NPROXY_" not in name}
        env |= dict.fromkeys(_KEYS, _SECRET)
        env |= {
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "ROOT": str(ROOT),
            "NOTES": str(self.notes),
            "NPROXY_LISTEN__PORT": str(self.port),
            "OPENAI_BASE_URL": f"http://{self.gateway}/v1",
            "OPENAI_API_KEY": "unused",
        }
        words = ["bash", "-euo", "pipefail", "-c", self.here(text)]
        done = subprocess.run(
            words, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert '"error"' not in done.stdout, done.stdout[-3000:]
        return done.stdout

    def _python(self, block: Block) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.chdir(self.folder):
            exec(compile(self.here(block.text), str(block), "exec"), self.names)
        return printed.getvalue()

    def _yaml(self, text: str) -> None:
        """Check settings or a key file; one that begins with a comment of its file name is written for later blocks."""
        named = re.match(r"# (\S+\.yaml)\n", text)
        if named and named[1] == "keys.yaml":
            file = self.folder / "keys-of-the-page.yaml"
            file.write_text(re.sub(r"sha256:(\w+)\.\.\.", lambda found: f"sha256:{found[1]:0<64}", text))
            read_keys(file)
            return
        data: Any = yaml.safe_load(textwrap.dedent(text))
        if text.startswith(" "):  # an upstream's keys
            data = {"upstreams": [{"name": "fleet", "replicas": ["http://10.0.0.1:8000/v1"], **data}]}
        secrets = dict.fromkeys(_REFERENCES.findall(text), _SECRET)
        from_message({"data": data, "folder": str(ROOT), "secrets": secrets})
        if named:
            (self.folder / named[1]).write_text(self.here(text))

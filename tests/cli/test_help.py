"""Help that teaches by example, and an `nproxy` that is quick to help."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from nproxy.cli import main
from tests.cli.examples import Example, commands, examples, lines, parse
from tests.fakes.upstream import Behaviour, FakeUpstream

HEAVY = ("aiohttp", "httpx", "huggingface_hub", "prometheus_client", "pydantic", "rich", "torch", "uvloop", "yaml")

RUN_ELSEWHERE = ("nproxy serve", "nproxy bench", "nproxy models pull", "nproxy models remove")
"""Their tests are in test_serving.py, bench/ and models/: they do not end, take long, or fetch."""
KEY = "a-key-of-some-twenty-characters"

ALL = examples()
RUN = [
    example
    for example in ALL
    if example.of != "nproxy" and not any(command in example.line for command in RUN_ELSEWHERE)
]


@pytest.mark.parametrize(("path", "command"), list(commands()), ids=[path for path, _ in commands()])
def test_every_page_has_examples_of_its_command(path: str, command: click.Command) -> None:
    assert lines(command), f"{path} --help has no example"
    assert all(path in line for line in lines(command))


@pytest.mark.parametrize("example", ALL, ids=lambda example: example.line)
def test_examples_are_good_calls(example: Example) -> None:
    calls = list(example.calls())
    assert calls
    for words in calls:
        parse(words)


def test_a_wrong_example_is_seen() -> None:
    for line in ("nproxy frob", "nproxy chat --frob", "A=b nproxy chat -n none | jq", "nproxy probe"):
        with pytest.raises(click.UsageError):
            for words in Example("", line).calls():
                parse(words)


@pytest.mark.parametrize("example", RUN, ids=lambda example: example.line)
async def test_examples_run(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the file that they name, before a scripted server; what a shell would do is left out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nproxy.yaml").write_text("upstreams: [{name: a, replicas: ['http://127.0.0.1:1/v1']}]\n")
    hashes = [f"sha256:6f2c81d0{'0' * 56}", f"sha256:{'1' * 64}"]
    keys = [{"name": "team-a", "hash": hashes}, {"name": "team-b", "hash": f"sha256:{'2' * 64}"}]
    (tmp_path / "keys.yaml").write_text(json.dumps({"keys": keys}))
    secrets = dict.fromkeys(re.findall(r"\$\{(\w+)\}", example.line), KEY)
    async with FakeUpstream(Behaviour(n="native")) as upstream:
        for words in example.calls():
            here = [re.sub(r"https?://\S+/v1", upstream.url, word) for word in words]
            if words[0] == "chat" and "--url" not in words:
                here += ["--url", upstream.url]
            result = await asyncio.to_thread(CliRunner().invoke, main, here, input=KEY, env=secrets)
            assert result.exit_code == 0, result.output


@pytest.mark.parametrize("words", [(), ("chat",), ("serve",), ("models", "pull"), ("bench",)], ids=" ".join)
def test_help_loads_nothing_that_takes_time(words: tuple[str, ...]) -> None:
    program = (
        "import sys; from nproxy.cli import main\n"
        "try: main([*sys.argv[1:], '--help'])\n"
        "except SystemExit: print('loaded:', *sys.modules)"
    )
    argv = [sys.executable, "-c", program, *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stdout.partition("loaded:")[2].split()
    assert "click" in loaded
    assert sorted(set(HEAVY) & set(loaded)) == []


def test_one_line_says_of_each_command_what_it_does() -> None:
    for path, command in commands():
        if command is not main:
            said = command.get_short_help_str(limit=60)
            assert said.endswith(".") and not said.endswith(".."), f"{path}: {said}"

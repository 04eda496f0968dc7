"""The entry for the settings file: it is one, and it says what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from nproxy.cli.probe.entry import as_yaml
from nproxy.config import NativeUpTo, Replica, Upstream, load
from nproxy.config.replicas import parse_address
from tests.cli.probe.pretend import PLAN, Pretend, refusal, reply

CANARY = "canary-77ab"
SLOTS = reply([{"id": number, "is_processing": False} for number in range(4)])


def entry(server: Pretend, url: str = "http://127.0.0.1:8001", key: str | None = None) -> str:
    return as_yaml(server.probe(), parse_address(url), key, PLAN.widest)


def upstream(text: str, folder: Path) -> Upstream:
    file = folder / "nproxy.yaml"
    file.write_text(text)
    return load(file, environ={"KEY": CANARY}).upstreams[0]


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (Pretend(), {"n": "native", "seed": "send", "models": "auto", "api_key": "none", "usage": "auto"}),
        (Pretend(widest=32), {"n": NativeUpTo(native_up_to=32)}),
        (Pretend(ignore=("n",)), {"n": "fanout", "prompts": "list"}),
        (Pretend(ignore=("n",), paths=("/chat/completions",)), {"n": "fanout", "prompts": "auto"}),
        (Pretend(ignore=("n",), prompt_lists="break"), {"n": "fanout", "prompts": "one"}),
        (Pretend(refuse={"n": 'no "n" # here: {x}'}), {"n": "fanout"}),
        (Pretend(same_seed=True), {"n": "fanout"}),  # R6
        (Pretend(counts="one", usage="tails"), {"n": "native", "usage": "stream"}),  # R4, as llama.cpp
        (Pretend(counts="one"), {"n": "fanout", "usage": "auto"}),  # R4, in streams as well
        (Pretend(refuse={"seed": "no seed"}), {"n": "native", "seed": "omit"}),
        (Pretend(ignore=("seed",)), {"seed": "auto"}),
        (Pretend(greedy_n=False), {"n": "native"}),
        (Pretend(), {"prompts": "auto"}),
        (Pretend(prompt_lists="first"), {"prompts": "one"}),  # J4
        (Pretend(prompt_lists="break"), {"prompts": "one"}),
        (Pretend(prompt_lists="die"), {"prompts": "one"}),
        (Pretend(prompt_lists="whole"), {"prompts": "one"}),
        *((Pretend(stream_n=broken), {"n": "fanout"}) for broken in ("breaks", "empty", "unfinished", "mixed")),
        (Pretend(paths=("/chat/completions",)), {"prompts": "auto"}),
        (Pretend(gets={"/slots": iter([SLOTS])}), {"parallel": 4}),
        (Pretend(gets={"/slots": iter([SLOTS])}, cuts=True), {"parallel": 1}),
        (Pretend(gets={"/slots": iter([SLOTS])}, room=3), {"parallel": 3}),
        (Pretend(), {"parallel": "auto"}),
        (Pretend(one_seed=True), {"parallel": 1, "seed": "send"}),
        (Pretend(listed=reply({"data": [{"id": "m", "owned_by": "nproxy"}]})), {"wire": "exact"}),
        (Pretend(draws="never", paths=("/completions",)), {"n": "native", "seed": "auto"}),
    ],
)
def test_it_is_taken_and_says_what_was_found(server: Pretend, expected: dict[str, Any], tmp_path: Path) -> None:
    found = upstream(entry(server), tmp_path)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.replicas == (Replica(url="http://127.0.0.1:8001/v1"),)


def test_a_model_that_is_in_no_list_is_named(tmp_path: Path) -> None:
    server = Pretend(listed=refusal("no list", 500))
    odd = 'a: "b" # 😀'
    report = server.probe(type(PLAN)(nonce="nonce", model=odd))
    text = as_yaml(report, parse_address("http://127.0.0.1:8001"), None, PLAN.widest)
    assert upstream(text, tmp_path).models == {odd: odd}


@pytest.mark.parametrize(
    "url", ["https://[::1]:8/x", "unix:/run/engine.sock", "http://a.b.c", "http://__", f"http://{'a' * 50}.{'b' * 49}"]
)
def test_every_address_gets_a_name(url: str, tmp_path: Path) -> None:
    found = upstream(f"engine: {{}}\n{entry(Pretend(), url)}", tmp_path)
    assert found.replicas == (parse_address(url),)


def test_a_key_is_referred_to_and_never_written(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(CANARY)
    for reference in ("${KEY}", "file:key"):
        assert upstream(entry(Pretend(), key=reference), tmp_path).api_key == SecretStr(CANARY)
    text = entry(Pretend(), key=CANARY)
    assert CANARY not in text
    assert upstream(text, tmp_path).api_key == "passthrough"


def test_what_is_missing_stands_in_comments() -> None:
    text = entry(Pretend(done=False, roles="none", ignore=("echo",)))
    assert yaml.safe_load(text)["upstreams"][0]["n"] == "native"
    assert [line.strip() for line in text.splitlines() if line.startswith("    #")] == [
        "# /chat/completions: sends [DONE]: no (the stream just ended)",
        "# /chat/completions: role chunks first, in order: no (no role for [0, 1])",
        "# /completions: sends [DONE]: no (the stream just ended)",
        "# /completions: echo: no (ignored: the answer has no prompt)",
    ]

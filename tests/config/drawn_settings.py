"""Settings with everything about them drawn: whatever a file and an environment hold, they are settings or problems.

`play(rng, folder)` writes a file that began as a good one, has it read, and raises for another end than those two, for
a secret in a problem, and for settings that another process would read otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import yaml

from nproxy.config import Reading, Source, from_message, needs_restart, summarise

CANARY = "canary-c0ffee"

GOOD: dict[str, Any] = {
    "listen": {
        "host": "127.0.0.1",
        "port": 8000,
        "workers": 2,
        "drain_seconds": 30,
        "trusted_proxies": ["10.0.0.0/8", "::1"],
        "cors_origins": ["https://page.example"],
        "huge_pages": "none",
    },
    "engine": {"model": "m", "device": "cpu", "num_blocks": 9, "max_batch_tokens": 512, "adapters": {"a": "/x"}},
    "upstreams": [
        {
            "name": "one",
            "replicas": ["http://a:1/v1", "unix:/run/a.sock", {"url": "https://b", "weight": 2}, {"dns": "c:80"}],
            "models": {"alias": "name"},
            "api_key": CANARY,
            "n": {"native_up_to": 4},
            "parallel": 4,
            "timeouts": {"connect": 5, "total": None},
            "retries": {"per_leg": 1, "budget": 0.2},
            "breaker": None,
            "resume": "off",
            "fallback": ["two"],
        },
        {"name": "two", "replicas": [], "models": ["m", "k"], "api_key": "none", "breaker": {"ratio": 0.5}},
    ],
    "n_policy": {"max_n": 128, "greedy": "accept"},
    "passthrough": {"paths": ["/v1/x"], "upstream": "one"},
    "limits": {"body_mib": 10, "queue_seconds": 0, "tokens_per_minute": 100},
    "stream": {"ping_seconds": None},
    "pages": {"playground": False},
    "telemetry": {"metrics": True, "log_format": "text"},
    "auth": {"api_key": CANARY},
    "admin": {"host": "::1", "port": 0, "token": "${TOKEN}"},
}
"""Every section, most kinds of values; what is drawn goes on from here."""

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 10**30, 0.5, -0.0, 1e308, "", " ", "~", "null", "off", "auto", "none", "default"),
    *([], {}, [[]], [None], {"": ""}, ["a", "a"], {"url": 1}, {"dns": ":"}, {"dns": "a:99999"}, {"native_up_to": 0}),
    *("http://", "http://[::1", "http://a b", "http://u:p@h", "unix:x", "unix:///", "dns:a", "http://\u00fc:80/\u00e9"),
    *("file:", "file:~nobody-here/x", "file:a\0b", "file:/proc/self/mem", "file:.", "${}", "${TOKEN}", "${NONE}"),
    *("\u2028", "\ufeff", "x" * 300, "xn--", "\u00df.example", "a" * 64 + ".b", "..", "1.2.3.4/33", "::/0", "*"),
    *("0x10", "1_000", "a${TOKEN}", "2027-01-01", "sha256:", "https://*"),
)

SYNTAX = (
    *("&a ", "*a", "<<: *a\n", "!!python/object:os.system ", "!x ", "? ", "- ", ": ", "\t", "%YAML 9\n", "---\n"),
    *("...\n", "'", '"', "{", "]", "|\n", "#", "\0", "\x85", "\U0001f600", "\ud83d"),
)


def play(rng: Random, folder: Path) -> None:
    """Draw settings and have them read; raises AssertionError for what must not be."""
    tree = json.loads(json.dumps(GOOD))
    for _ in range(rng.choice((0, 1, 1, 1, 3))):
        _change(rng, tree)
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, default_flow_style=rng.choice((None, False, True)))
    content = _cut(rng, text).encode("utf-8", "surrogatepass")
    file = folder / "nproxy.yaml"
    file.write_bytes(_spoil(rng, content))
    _check(Source(file, {"TOKEN": CANARY, **_environment(rng)}).read())


def _check(reading: Reading) -> None:
    for problem in reading.problems:
        assert CANARY not in str(problem), problem
    assert len({*reading.problems}) == len(reading.problems), "each once"
    if reading.config is None:
        assert reading.problems
        return
    assert not reading.problems
    assert CANARY not in summarise(reading.config, reading.keys) + repr(reading)
    assert from_message(json.loads(json.dumps(reading.message()))) == reading.config
    assert needs_restart(reading.config, reading.config, reading.tree) == []


def _change(rng: Random, tree: Any) -> None:
    """Change one part somewhere: another value, another key, one more, one less."""
    here, path = tree, []
    while isinstance(here, dict | list) and here:
        key = rng.choice(list(here) if isinstance(here, dict) else range(len(here)))
        path.append((here, key))
        here = here[key]
        if rng.random() < 0.3:
            break
    if not path:
        return
    inside, key = path[-1]
    match rng.randrange(5):
        case 0:
            del inside[key]
        case 1 if isinstance(inside, dict):
            inside[rng.choice([*GOOD, *GOOD["upstreams"][0], "nope", "", "1", "on"])] = inside.pop(key)
        case 2 if isinstance(inside, list):
            inside.append(inside[key])
        case _:
            inside[key] = rng.choice(ODD)


def _cut(rng: Random, text: str) -> str:
    """Now and then put YAML's own signs where none belong."""
    while rng.random() < 0.2:
        at = rng.randint(0, len(text))
        text = text[:at] + rng.choice(SYNTAX) + text[at + rng.choice((0, 0, 1, 20)) :]
    return text


def _spoil(rng: Random, content: bytes) -> bytes:
    """Now and then break the bytes."""
    if rng.random() < 0.1 and content:
        at = rng.randrange(len(content))
        content = content[:at] + rng.randbytes(rng.randint(0, 4)) + content[at + 1 :]
    return content if rng.random() < 0.95 else content[: rng.randint(0, len(content))]


def _environment(rng: Random) -> Mapping[str, str]:
    names = (
        "LISTEN__PORT",
        "UPSTREAMS__0__N",
        "UPSTREAMS__9__NAME",
        "ENGINE",
        "LIMITS__BODY_MIB",
        "X",
        "__",
        "LISTEN__",
        "0",
    )
    values = ("1", "{", "[1, 2]", "null", "", "{a: 1}", CANARY, "auto", "9" * 5000, "\ud800", "!!x [", "{<<: 1}")
    return {f"NPROXY_{rng.choice(names)}": rng.choice(values) for _ in range(rng.choice((0, 0, 0, 0, 1, 2)))}

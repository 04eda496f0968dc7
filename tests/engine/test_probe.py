"""`nproxy probe` finds the built-in engine as it is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.engine.conftest import MODEL
from tests.real.processes import Server

pytestmark = [pytest.mark.model, pytest.mark.timeout(330)]

NOT_THERE: dict[str, dict[str, str]] = {"chat": {}, "completions": {}, "server": {"slots": "unknown"}}


def test_the_engine_gives_the_true_table(engine_server: Server) -> None:
    argv = [sys.executable, "-m", "nproxy", "probe", engine_server.v1, "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    told = json.loads(done.stdout)
    assert (told["server"], told["models"]) == ("nproxy's engine", [MODEL])
    found = told["findings"]
    assert found["chat"]["n"]["value"] == 48
    assert found["chat"]["seed_per_choice"]["how"] == "choice i equals the answer to one request with seed + i"
    not_yes = {
        section: {name: one["verdict"] for name, one in facts.items() if one["verdict"] != "yes"}
        for section, facts in found.items()
    }
    for facts in found.values():
        for name, one in facts.items():
            if one["how"] == "not asked":
                del not_yes["completions"][name]
    for name in ("usage_all_choices", "stream_usage_all_choices"):
        if not_yes["completions"].get(name) == "unknown":  # it cannot be told where a choice happens to be drawn short
            del not_yes["completions"][name]
    assert not_yes == NOT_THERE

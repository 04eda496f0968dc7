"""Words, and the environment of what computes in the benchmark's own process."""

import os
from collections.abc import Mapping, Sequence

import pytest

from bench.engine.options import as_the_engine_runs


@pytest.mark.parametrize(
    ("environ", "spins"), [({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, None), ({"OMP_WAIT_POLICY": "passive"}, None)]
)
def test_threads_spin_as_in_the_engine(
    monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str], spins: str | None
) -> None:
    started: list[tuple[Sequence[str], str]] = []

    def execve(path: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        started.append((argv[1:], env["GOMP_SPINCOUNT"]))

    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "1")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "execve", execve)
    as_the_engine_runs("bench.engine.curves", ["--n", "4"])
    assert started == ([(["-m", "bench.engine.curves", "--n", "4"], spins)] if spins else [])

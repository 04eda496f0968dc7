"""A C compiler, the machine's or the one that install.sh installs if there is none, and processors to compile for."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from bench.gateway.programs import compiler
from engine.native import build


@pytest.fixture(scope="session", autouse=True)
def _compiler() -> Iterator[None]:
    if build.compiler() is not None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "CC", shlex.join(compiler()))
        yield


def _processors() -> list[str]:
    """Return this machine's processor and others whose code it can run, with narrower and with fewer registers."""
    if platform.machine() != "x86_64":
        return ["native"]
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    lesser = {"avx512f": ["haswell", "skylake-avx512"], "amx_bf16": ["cooperlake"]}
    return ["native", "x86-64", *chain(*(names for flag, names in lesser.items() if flag in flags))]


@pytest.fixture(scope="module", params=_processors())
def _processor(request: pytest.FixtureRequest) -> Iterator[None]:
    """The processor that a module's kernels are compiled for."""
    flags = [f"-march={request.param}" if flag == "-march=native" else flag for flag in build._FLAGS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_FLAGS", tuple(flags))
        build.load_kernels.cache_clear()
        yield
    build.load_kernels.cache_clear()

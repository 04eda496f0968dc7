"""A C compiler: the machine's, or the one that install.sh brings where it has none."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

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

"""Which `engine` the child processes import."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from engine import child_environment as module
from engine.child_environment import child_environment


@pytest.mark.parametrize(("given", "behind"), [("/elsewhere:/there", ":/elsewhere:/there"), ("", ""), (None, "")])
def test_the_core_imports_what_the_server_does_before_all_else(
    monkeypatch: pytest.MonkeyPatch, given: str | None, behind: str
) -> None:
    root = str(Path(module.__file__ or "").parent.parent)
    monkeypatch.setattr(module, "site", SimpleNamespace(getsitepackages=list))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if given is not None:
        monkeypatch.setenv("PYTHONPATH", given)
    assert child_environment()["PYTHONPATH"] == root + behind
    monkeypatch.setattr(module, "site", SimpleNamespace(getsitepackages=lambda: [root]))
    assert child_environment().get("PYTHONPATH") == given

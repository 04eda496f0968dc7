"""What the engine needs is found out before it starts, and told where it was set."""

from __future__ import annotations

import pytest

from nproxy.cli import engine_needs
from nproxy.cli.engine_needs import NotInstalled


def test_a_missing_package_of_the_engine_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    engine_needs.demand_installed()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(NotInstalled, match=r"needs torch: pip install '\.\[engine\]' in nproxy's folder"):
        engine_needs.demand_installed()

"""Lists of settings and fields that pages give in sentences are complete."""

from __future__ import annotations

from nproxy.config.changes import BOUND, THERE_OR_NOT
from nproxy.openai.choice_params import Params
from tests.real.processes import ROOT


def _section(page: str, head: str) -> str:
    """Return the text below a heading, up to the next one."""
    return (ROOT / page).read_text(encoding="utf-8").partition(f"\n## {head}\n")[2].partition("\n## ")[0]


def test_settings_that_need_a_restart() -> None:
    told = _section("docs/fleet.md", "Reload").lower()
    keys = {str(path[-1]) for path in THERE_OR_NOT + BOUND if path[:1] != ("admin",)} | {"admin"}
    assert {key for key in keys if key not in told} == set()


def test_parameters_that_may_differ_between_choices() -> None:
    told = _section("docs/guides/choices.md", "choice_params")
    penalties = {name for name in Params.model_fields if name.endswith("_penalty")}
    assert "the penalties" in told
    assert {name for name in Params.model_fields.keys() - penalties if f"`{name}`" not in told} == set()

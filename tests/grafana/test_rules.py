"""The rules: each alert says what it means, leads to its section of the guide, and has its tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.grafana.test_dashboards import RECORDED, asked_for, exposed

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guides" / "alerts.md"
RULES: list[dict[str, Any]] = [
    rule
    for file in sorted(ROOT.glob("grafana/rules/*.yml"))
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
TESTS: list[dict[str, Any]] = [
    test for file in ROOT.glob("grafana/tests/*.yml") for test in yaml.safe_load(file.read_text())["tests"]
]


@pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)
def test_what_all_alerts_have(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert ROOT / page == GUIDE and anchor == alert["alert"].lower()


@pytest.mark.parametrize("name", ALERTS)
def test_the_guide_knows_it(name: str) -> None:
    sections = re.split(r"(?m)^## ", GUIDE.read_text())[1:]
    (section,) = [one for one in sections if one.startswith(f"{name}\n")]
    assert section.split("\n\n")[1].startswith(f"{ALERTS[name]['labels']['severity']}. ")


def test_the_guide_knows_no_other() -> None:
    assert set(re.findall(r"(?m)^## (.+)$", GUIDE.read_text())) == ALERTS.keys()
    assert (
        set(re.findall(r"\bNproxy\w+", "".join(map(Path.read_text, ROOT.glob("grafana/source/*.py"))))) <= ALERTS.keys()
    )


@pytest.mark.parametrize("name", ALERTS)
def test_it_is_tested_to_fire_and_not_to(name: str) -> None:
    cases = [case for test in TESTS for case in test["alert_rule_test"] if case["alertname"] == name]
    assert any(case["exp_alerts"] for case in cases) and any(not case["exp_alerts"] for case in cases)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_what_it_asks_for(rule: dict[str, Any]) -> None:
    expression = rule["expr"]
    assert set(re.findall(r"\b\w+:\w+:\w+", expression)) <= RECORDED
    assert asked_for(expression) <= exposed()

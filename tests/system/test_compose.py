"""Checks the compose file against the schema, and its files against each other; nothing is started."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from tests.real.processes import ROOT
from tests.system.packages import installed

GRAFANA = ROOT / "grafana"
COMPOSE: dict[str, Any] = yaml.safe_load((GRAFANA / "compose.yaml").read_text())


def mounts() -> list[tuple[str, str]]:
    """Return the mounted paths of this folder, and their mount points."""
    volumes = [volume.split(":") for service in COMPOSE["services"].values() for volume in service["volumes"]]
    return [(volume[0], volume[1]) for volume in volumes if volume[0].startswith(".")]


def test_its_schema() -> None:
    schema = json.loads((installed("compose") / "compose" / "config" / "compose_spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(COMPOSE)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate({**COMPOSE, "services": {"nproxy": {"porst": []}}})


def test_what_it_mounts_is_there() -> None:
    assert [name for name, _ in mounts() if not (GRAFANA / name).exists()] == []
    named = {volume.split(":")[0] for service in COMPOSE["services"].values() for volume in service["volumes"]}
    assert {name for name in named if not name.startswith(".")} == COMPOSE["volumes"].keys()


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    scrape = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:9090")
    assert source["jsonData"]["timeInterval"] == scrape
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/nproxy.yaml").read_text())["providers"]
    assert ("./dashboards", provider["options"]["path"]) in mounts()
    home = COMPOSE["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/overview.json" and (GRAFANA / "dashboards/overview.json").exists()


def test_the_image_is_one_of_deploy() -> None:
    build = COMPOSE["services"]["nproxy"]["build"]
    stages = re.findall(r"(?m)^FROM .* AS (.+)$", (ROOT / build["dockerfile"]).read_text())
    assert (ROOT / build["dockerfile"], build["target"] in stages) == (ROOT / "deploy" / "Containerfile", True)

"""deploy/: the settings are good, and manifests agree with them, with each other and with what the gateway serves."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from nproxy.config import Config, from_message
from nproxy.gateway import routes

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"

CONTAINERFILE = (DEPLOY / "Containerfile").read_text()


def manifests() -> list[dict[str, Any]]:
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    return [one for name in listed for one in yaml.safe_load_all((KUBERNETES / name).read_text())]


def manifest(kind: str, name: str = "nproxy") -> dict[str, Any]:
    [found] = [one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


POD = manifest("Deployment")["spec"]["template"]
[CONTAINER] = POD["spec"]["containers"]
PORTS = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}


def checked(text: str) -> Config:
    secrets = dict.fromkeys(re.findall(r"\$\{\w+\}", text), "secret-of-the-deployment")
    return from_message({"data": yaml.safe_load(text), "folder": str(ROOT), "secrets": secrets})


def settings() -> Config:
    return checked((KUBERNETES / "nproxy.yaml").read_text())


def test_the_kustomization_has_every_file() -> None:
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    used = {*listed["resources"], *listed["configMapGenerator"][0]["files"], "kustomization.yaml"}
    assert {path.name for path in KUBERNETES.iterdir()} == used


def test_the_secret_has_what_the_settings_name() -> None:
    made = re.findall(r"--from-literal=(\w+)=", (KUBERNETES / "kustomization.yaml").read_text())
    assert set(made) == set(re.findall(r"\$\{(\w+)\}", (KUBERNETES / "nproxy.yaml").read_text()))
    assert settings().auth is not None, "others than its owners reach it, and it has the servers' key"


def test_the_ports_are_those_of_the_settings() -> None:
    config = settings()
    assert config.admin is not None
    assert (PORTS["http"], PORTS["admin"]) == (config.listen.port, config.admin.port)
    for service in ("nproxy", "nproxy-admin"):
        for port in manifest("Service", service)["spec"]["ports"]:
            assert port["targetPort"] in PORTS
    assert (config.listen.host, config.admin.host) == ("0.0.0.0", "0.0.0.0")


@pytest.mark.parametrize("probe", ["readinessProbe", "livenessProbe", "startupProbe"])
def test_the_probes_ask_what_is_served_without_a_key(probe: str) -> None:
    asked = CONTAINER[probe]["httpGet"]
    assert asked["port"] == "http"
    assert routes._OWN[asked["path"]].keyless


def test_a_pod_has_time_to_drain() -> None:
    sleep = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert POD["spec"]["terminationGracePeriodSeconds"] >= sleep + settings().listen.drain_seconds + 10


def test_all_select_the_pods() -> None:
    labels = POD["metadata"]["labels"].items()
    selectors = [manifest("Deployment")["spec"]["selector"]["matchLabels"]]
    selectors += [manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]]
    selectors += [manifest("Service", name)["spec"]["selector"] for name in ("nproxy", "nproxy-admin")]
    assert all(selector.items() <= labels for selector in selectors)


def test_prometheus_finds_the_admin_port_and_its_token() -> None:
    monitor, service = manifest("ServiceMonitor")["spec"], manifest("Service", "nproxy-admin")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert not monitor["selector"]["matchLabels"].items() <= manifest("Service")["metadata"]["labels"].items()
    [endpoint] = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    credentials = endpoint["authorization"]["credentials"]
    assert f"${{{credentials['key']}}}" in (KUBERNETES / "nproxy.yaml").read_text()
    assert CONTAINER["envFrom"] == [{"secretRef": {"name": credentials["name"]}}]


def test_the_autoscaler_has_the_number_of_pods_to_itself() -> None:
    assert "replicas" not in manifest("Deployment")["spec"]
    target = manifest("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "nproxy")
    assert "cpu" in CONTAINER["resources"]["requests"], "a part of nothing is nothing"


def test_settings_are_mounted_where_they_are_read() -> None:
    [mount] = [mount for mount in CONTAINER["volumeMounts"] if mount["name"] == "settings"]
    assert "subPath" not in mount
    assert f"{mount['mountPath']}/nproxy.yaml" in CONTAINER["args"]
    assert f'"{mount["mountPath"]}/nproxy.yaml"' in CONTAINERFILE


def test_the_image_runs_as_the_user_of_the_pods() -> None:
    user = POD["spec"]["securityContext"]["runAsUser"]
    assert set(re.findall(r"^USER (.+)$", CONTAINERFILE, re.MULTILINE)) == {f"{user}:{user}", "0"}
    last = CONTAINERFILE.split("\nFROM ")[1:]
    assert all(re.findall(r"^USER (.+)$", stage, re.MULTILINE)[-1:] in ([], [f"{user}:{user}"]) for stage in last)


def test_the_image_is_made_of_files_that_are_there_and_not_ignored() -> None:
    copied = {
        name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE, re.MULTILINE) for name in line.split()
    }
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert copied >= set(build["only-include"]), "what is not there is left out of the wheel without a word"

"""Checks deploy/ with other projects' rules: Kubernetes' schemas, in strict form, and hadolint for images."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.real.processes import ROOT
from tests.system.packages import installed

KUBERNETES = ROOT / "deploy" / "kubernetes"
FOREIGN = {"Kustomization", "ServiceMonitor"}
"""Kinds that are not Kubernetes' own, so that it has no schema for them."""


@pytest.fixture(scope="module")
def kubernetes_validate() -> Any:
    sys.path.append(str(installed("deploy")))  # after nproxy's own packages
    return importlib.import_module("kubernetes_validate")


MANIFESTS = [
    pytest.param(one, id=f"{one['kind']}-{one['metadata']['name']}")
    for path in sorted(KUBERNETES.glob("*.yaml"))
    for one in yaml.safe_load_all(path.read_text())
    if one.get("kind") not in (None, *FOREIGN)
]


@pytest.mark.parametrize("version", ["1.30", "1.33", "1.37"])
@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_manifest_fits_the_schema(kubernetes_validate: Any, manifest: dict[str, Any], version: str) -> None:
    assert kubernetes_validate.validate(manifest, version, strict=True).startswith(version)


def test_a_misspelt_field_does_not(kubernetes_validate: Any) -> None:
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"selektor": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_the_containerfile_has_no_fault_that_hadolint_knows() -> None:
    hadolint = installed("deploy") / "bin" / "hadolint"
    argv = [str(hadolint), "--no-color", str(ROOT / "deploy" / "Containerfile")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (0, "")

"""A real Prometheus with nproxy's own configuration, for a test's gateways."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from tests.ports import free_port
from tests.real.metrics import wait_for
from tests.real.processes import ROOT, Server, server
from tests.system.tools import PROMETHEUS, needed

SHIPPED = ROOT / "grafana" / "prometheus.yml"
PATIENCE = 120.0
"""The limit of every wait, in seconds; nothing here is timed."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus, which scrapes and evaluates every second."""

    server: Server

    @classmethod
    @contextmanager
    def started(cls, targets: Mapping[str, str], folder: Path) -> Iterator[Self]:
        """Run it with the shipped configuration and rules; the given targets replace the shipped ones."""
        told: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
        told["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        told["rule_files"] = [str(SHIPPED.parent / pattern) for pattern in told["rule_files"]]
        (job,) = told["scrape_configs"]
        job["static_configs"] = [{"targets": [*targets.values()]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(told))
        port = free_port()
        argv = [
            needed(PROMETHEUS),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
        ]
        argv += [f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage"]
        with server(argv, port=port, log=folder / "prometheus.log", ready="/-/ready") as running:
            yield cls(running)

    def get(self, path: str, **params: str) -> Any:
        """Return the data of an answer of its API."""
        answer = httpx.get(f"{self.server.url}/api/v1/{path}", params=params, timeout=60, trust_env=False)
        assert answer.status_code == 200, (params, answer.text)
        return answer.json()["data"]

    def values(self, expression: str) -> list[float]:
        """Evaluate an expression now and return one number per series."""
        return [float(row["value"][1]) for row in self.get("query", query=expression)["result"]]

    def flaw(self, expression: str) -> str | None:
        """Return what is wrong with an expression's result; None if it has values and all are finite."""
        values = self.values(expression)
        if not values:
            return "nothing"
        return None if all(map(math.isfinite, values)) else f"not finite: {values}"

    def scraped(self, times: int) -> None:
        """Wait until every target that is up has been scraped `times` more times."""
        count = "min(count_over_time(up[1h]) and up == 1)"
        wanted = sum(self.values(count)) + times
        wait_for(lambda: sum(self.values(count)) >= wanted, seconds=PATIENCE, what=f"{times} scrapes")

    def alerts(self) -> set[str]:
        """Return the names of alerts that fire or are pending."""
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"]}


def without_bounds(expression: str) -> str:
    """Return an alert's expression with its comparisons as 0 or 1, so that it also gives data while all is well."""
    return re.sub(r"(?<= )(==|!=|>=|<=|>|<)(?= )", r"\1 bool", expression)

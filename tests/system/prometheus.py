"""A real Prometheus with nproxy's own configuration, for gateways of a test."""

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
"""Seconds that anything may take; nothing here is timed."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """It scrapes and evaluates every second."""

    server: Server

    @classmethod
    @contextmanager
    def started(cls, targets: Mapping[str, str], folder: Path) -> Iterator[Self]:
        """Run it on the shipped configuration and rules, with these targets in the place of the shipped one."""
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
        """The data of an answer of its API."""
        answer = httpx.get(f"{self.server.url}/api/v1/{path}", params=params, timeout=60, trust_env=False)
        assert answer.status_code == 200, (params, answer.text)
        return answer.json()["data"]

    def values(self, expression: str) -> list[float]:
        """What an expression gives now, a number for each series."""
        return [float(row["value"][1]) for row in self.get("query", query=expression)["result"]]

    def flaw(self, expression: str) -> str | None:
        """What is wrong with what an expression gives; None where there is something, and all of it finite."""
        values = self.values(expression)
        if not values:
            return "nothing"
        return None if all(map(math.isfinite, values)) else f"not finite: {values}"

    def scraped(self, times: int) -> None:
        """Wait until every target that answers was scraped so many times more."""
        count = "min(count_over_time(up[1h]) and up == 1)"
        wanted = sum(self.values(count)) + times
        wait_for(lambda: sum(self.values(count)) >= wanted, seconds=PATIENCE, what=f"{times} scrapes")

    def alerts(self) -> set[str]:
        """The names of alerts that fire, or would if it went on for so long as they wait."""
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"]}


def without_bounds(expression: str) -> str:
    """An alert's expression that gives something while all is well, too: comparisons say 0 or 1 and drop nothing."""
    return re.sub(r"(?<= )(==|!=|>=|<=|>|<)(?= )", r"\1 bool", expression)

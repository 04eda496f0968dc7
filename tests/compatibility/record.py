"""What is known of one server, and the file that keeps it: docs/compatibility.json, from which the page is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from nproxy.cli.probe.findings import Finding, completed

Setting = Literal["auto", "native", "fanout"]
"""The `n` of the upstream's entry, all else as the probe wrote it. native stands for whatever native calls it found."""
SETTINGS: tuple[Setting, ...] = ("auto", "native", "fanout")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case went. reason: what failed, or why it makes no sense there; empty where it passed."""

    verdict: Literal["pass", "fail", "not applicable"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One server.

    missing: why it could not be had or did not start; then the rest is empty. versions: by package. findings: the
    probe's, per section and fact. entry: what `nproxy probe --yaml` says. outcomes: per case and setting; there is no
    native setting before a server without n, nor where the case is about others.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    findings: Mapping[str, Mapping[str, Finding]] = field(default_factory=dict)
    entry: str = ""
    outcomes: Mapping[str, Mapping[Setting, Outcome]] = field(default_factory=dict)


Records = Mapping[str, Record]
"""By the server's name."""

_FILE = TypeAdapter[Records](Records)


def load(file: Path) -> Records:
    """Read the records; there are none where there is no file. Facts that came later were not asked for."""
    records = _FILE.validate_json(file.read_bytes()) if file.exists() else {}
    return {name: replace(record, findings=_whole(record.findings)) for name, record in records.items()}


def _whole(findings: Mapping[str, Mapping[str, Finding]]) -> Mapping[str, Mapping[str, Finding]]:
    return {section: completed(section, found) for section, found in findings.items()}


def save(file: Path, records: Records) -> None:
    """Write the records, so that a change of one fact is a change of one line or a few."""
    file.write_bytes(_FILE.dump_json(records, indent=1) + b"\n")

"""The record of one server, and the file of all records: docs/compatibility.json, from which the page is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from nproxy.cli.probe.findings import Finding, completed

Setting = Literal["auto", "native", "fanout"]
"""The `n` of the upstream's entry; the rest is as the probe wrote it. native: whatever native calls the probe found."""
SETTINGS: tuple[Setting, ...] = ("auto", "native", "fanout")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case went. reason: what failed, or why the case makes no sense there; empty if it passed."""

    verdict: Literal["pass", "fail", "not applicable"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One server."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """By package."""
    missing: str = ""
    """Why the server was not available or did not start; then the other fields are empty."""
    findings: Mapping[str, Mapping[str, Finding]] = field(default_factory=dict)
    """The probe's findings, by section and fact."""
    entry: str = ""
    """What `nproxy probe --yaml` writes."""
    outcomes: Mapping[str, Mapping[Setting, Outcome]] = field(default_factory=dict)
    """By case and setting. A server without n has no native setting; a case has only the settings that it is about."""


Records = Mapping[str, Record]
"""The records by their servers' names."""

_FILE = TypeAdapter[Records](Records)


def load(file: Path) -> Records:
    """Read the records; none if there is no file. Facts that were added later count as not asked."""
    records = _FILE.validate_json(file.read_bytes()) if file.exists() else {}
    return {name: replace(record, findings=_whole(record.findings)) for name, record in records.items()}


def _whole(findings: Mapping[str, Mapping[str, Finding]]) -> Mapping[str, Mapping[str, Finding]]:
    return {section: completed(section, found) for section, found in findings.items()}


def save(file: Path, records: Records) -> None:
    """Write the records in a form in which a change of one fact changes only a few lines."""
    file.write_bytes(_FILE.dump_json(records, indent=1) + b"\n")

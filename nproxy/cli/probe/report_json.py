"""The report as JSON, with a stable structure."""

from __future__ import annotations

import json
from typing import Any

from nproxy.cli.probe.findings import Report

SHAPE = 1
"""Increased when a key is renamed or removed; new facts may be added at any time."""


def as_json(report: Report) -> str:
    """Return `{"probe", "url", "model", "models", "server", "questions", "findings"}` as JSON.

    findings: per section (server, chat, completions) every fact as `{"verdict", "value", "how"}`. verdict: yes, no or
    unknown. value: a number, a word or null. how: a text for people.
    """
    value: dict[str, Any] = {
        "probe": SHAPE,
        "url": report.url,
        "model": report.model,
        "models": list(report.models),
        "server": report.server,
        "questions": report.questions,
        "findings": {
            section: {
                name: {"verdict": finding.verdict, "value": finding.value, "how": finding.how}
                for name, finding in found.items()
            }
            for section, found in report.sections.items()
        },
    }
    return json.dumps(value, indent=2)

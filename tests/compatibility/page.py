"""Writes docs/compatibility.md from docs/compatibility.json: only the findings, no machine and no date.

python -m tests.compatibility.page
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from nproxy.cli.probe.findings import FACTS, UNASKED, Finding
from nproxy.cli.probe.table import TITLES
from tests.compatibility.cases import CASES, Case
from tests.compatibility.record import SETTINGS, Outcome, Record, Records, Setting, load
from tests.real.processes import ROOT

FILE = ROOT / "docs" / "compatibility.json"
PAGE = ROOT / "docs" / "compatibility.md"

PASS, OPEN, NOTHING = "✓", "–", ""

INTRODUCTION = """\
# Compatibility

What `nproxy probe` finds of real servers, and what a client can count on with nproxy in front of them. Every server was
installed from the package index (Ollama, which is in none, was compiled from its source), started with
SmolLM2-135M-Instruct on a CPU, probed, and put behind one nproxy with three upstreams, all with the entry that the
probe wrote but for `n`: **auto**; **native**, as the entry has it; and **fanout**. vllm-router and smg stand between
nproxy and vLLM.

Made by `make compatibility` from [compatibility.json](compatibility.json), which it writes too;
`make compatibility ARGS="vLLM llama.cpp"` runs these and leaves the others as they are; so are those that a machine
cannot have.
"""
FOUND = f"""\
## What the probe finds

{OPEN} means that the answers do not tell. [compatibility.json](compatibility.json) tells how each fact is known.
"""
PLAYED = f"""\
## What passes

{PASS} means that the case passes in every setting in which it makes sense; settings are named where some do not pass.
A cell is empty where the case is left out for that server, for a reason given below. The rows are those of
[conformance.md](conformance.md), where scripted servers show the same in every variation.
"""


def page(records: Records) -> str:
    """Return the whole page."""
    had = {name: record for name, record in records.items() if not record.missing}
    parts = [
        INTRODUCTION,
        *_servers(records),
        FOUND,
        *(line for section in FACTS for line in _facts(section, had)),
        PLAYED,
        *_cases(had),
        *_reasons("Failures", "fail", had),
        *_reasons("Left out", "not applicable", had),
        "## Entries\n",
        "What `nproxy probe --yaml` says of each, ready for the settings file.\n",
        *(f"### {name}\n\n```yaml\n{record.entry}\n```\n" for name, record in had.items()),
    ]
    return "\n".join(parts)


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a Markdown table; a bar in a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def _servers(records: Records) -> Iterator[str]:
    def row(name: str, record: Record) -> Sequence[str]:
        if record.missing:
            return name, f"not examined: {record.missing}"
        return name, ", ".join(f"{package} {version}" for package, version in record.versions.items())

    yield table(["server", "versions"], (row(name, record) for name, record in records.items()))


def _facts(section: str, records: Records) -> Iterator[str]:
    yield table(
        [TITLES[section], *records],
        (
            [title, *(_verdict(record.findings[section][fact]) for record in records.values())]
            for fact, title in FACTS[section].items()
            if any(record.findings[section][fact].how not in UNASKED for record in records.values())
        ),
    )


def _verdict(found: Finding) -> str:
    if found.verdict == "unknown":
        return OPEN
    return found.verdict if found.value is None else f"{found.verdict}: {found.value}"


def _cases(records: Records) -> Iterator[str]:
    yield table(
        ["case", "row", *records],
        (
            [
                f"**{case.name}** {_code(case.holds)}",
                ", ".join(case.rows),
                *(_cell(case, one) for one in records.values()),
            ]
            for case in CASES.values()
        ),
    )


def _cell(case: Case, record: Record) -> str:
    """Return the outcomes of a case with a server, in short."""
    went = record.outcomes.get(case.name, {})
    by_verdict: dict[str, list[Setting]] = {}
    for setting in SETTINGS:
        if setting in went:
            by_verdict.setdefault(went[setting].verdict, []).append(setting)
    passed, failed = by_verdict.get("pass", []), by_verdict.get("fail", [])
    if failed:
        return "; ".join([*([f"{PASS} {', '.join(passed)}"] if passed else []), f"**✗** {', '.join(failed)}"])
    return PASS if passed else NOTHING


def _reasons(title: str, verdict: str, records: Records) -> Iterator[str]:
    """Yield a list of outcomes with their reasons; cases and settings with the same reason are listed together."""
    lines = [
        f"- {name}, {'; '.join(where)}: {_code(reason)}"
        for name, record in records.items()
        for reason, where in _by_reason(record.outcomes, verdict).items()
    ]
    if lines:
        yield f"### {title}\n"
        yield "\n".join(lines) + "\n"


def _by_reason(outcomes: Mapping[str, Mapping[Setting, Outcome]], verdict: str) -> dict[str, list[str]]:
    """Return where each reason holds, as `case`, or `case (settings)` if it does not hold in all settings."""
    found: dict[str, dict[str, list[Setting]]] = {}
    for case, went in outcomes.items():
        for setting, outcome in went.items():
            if outcome.verdict == verdict:
                found.setdefault(outcome.reason, {}).setdefault(case, []).append(setting)
    return {
        reason: [
            case if len(settings) == len(outcomes[case]) else f"{case} ({', '.join(settings)})"
            for case, settings in at.items()
        ]
        for reason, at in found.items()
    }


def _code(text: str) -> str:
    """Escape text for Markdown: what a server sent may contain anything."""
    return re.sub(r"([\\`*_<>\[\]])", r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(page(load(FILE)))

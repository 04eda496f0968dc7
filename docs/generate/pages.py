"""The pages that are made from the code, and who makes them. A new generator is a file beside this and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate import cli, config, errors, logs, metrics

DOCS = Path(__file__).resolve().parents[1]

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/cli.md": cli.page,
    "reference/config.md": config.page,
    "reference/errors.md": errors.page,
    "reference/logs.md": logs.page,
    "reference/metrics.md": metrics.page,
}
"""Each page's path below docs/, and what makes its text."""


def stale() -> list[str]:
    """The pages that are not there, or not what their source says."""
    return [name for name, page in PAGES.items() if not (file := DOCS / name).exists() or file.read_text() != page()]

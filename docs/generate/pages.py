"""The generated pages and their generators. A new generator is a module in this folder and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate import cli, config, engine_cli, errors, logs, metrics

DOCS = Path(__file__).resolve().parents[1]

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/cli.md": cli.page,
    "reference/config.md": config.page,
    "reference/engine.md": engine_cli.page,
    "reference/errors.md": errors.page,
    "reference/logs.md": logs.page,
    "reference/metrics.md": metrics.page,
}
"""Each page's path below docs/, and the function that returns its text."""


def stale() -> list[str]:
    """Return the pages that are missing or differ from what their source gives."""
    return [name for name, page in PAGES.items() if not (file := DOCS / name).exists() or file.read_text() != page()]

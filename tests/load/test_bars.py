"""The load bars in their short forms: what must hold on any machine; speed is not checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.load.bars import BARS
from bench.load.stand import stand


@pytest.mark.timeout(300)  # some seconds on a quiet machine
@pytest.mark.parametrize("name", BARS)
async def test_bar(name: str, tmp_path: Path) -> None:
    async with stand(tmp_path) as place:
        result = await BARS[name].on(place, BARS[name].short)
    assert all(result.holds.values()), (result.holds, result.figures)

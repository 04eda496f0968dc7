"""Plays a page from top to bottom, in its scene."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.docs.blocks import Block, blocks_of
from tests.docs.reading import Reading
from tests.docs.scenes import SCENES, Scene, scripted
from tests.ports import free_port
from tests.real.processes import ROOT

START = "nproxy serve --config nproxy.yaml\n"


def play(
    page: str, folder: Path, engine: str | None = None, real: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Run all blocks of a page; return what each printed. Raises AssertionError with all blocks that fail.

    real: replacements for words of the page, besides the scene's; servers at these addresses are not scripted.
    """
    scene = SCENES.get(page, Scene())
    with scripted({address: kind for address, kind in scene.servers.items() if address not in real}) as addresses:
        ports = {"127.0.0.1:9000": f"127.0.0.1:{(admin := free_port())}", "port: 9000": f"port: {admin}"}
        reading = Reading(folder, {**scene.words, **addresses, **ports, **real}, free_port(), engine)
        for name, text in scene.files.items():
            (folder / name).write_text(text)
        blocks = blocks_of(ROOT / page)
        if scene.config:
            (folder / "nproxy.yaml").write_text(reading.here(scene.config))
            blocks.insert(0, Block(page, 0, "sh", START))
        printed, failures = [], []
        try:
            for block in blocks:
                try:
                    printed.append(reading.run(block))
                except Exception as error:
                    failures.append(f"{block}: {type(error).__name__}: {error}\n{block.text}")
        finally:
            reading.close()
    assert failures == [], "\n".join(failures)
    return printed

"""Counts with valgrind the CPU instructions for a request, in a whole gateway, from its sockets and back to them.

    python -m bench.gateway.instructions

The unit is thousands of instructions. They do not depend on the machine's processor. On its other work they depend a
little: the gateway's timers count too, and fire more often in a run that takes longer, which made up a hundredth (979
and 991). To compare two checkouts, run it in both at the same time. Time changes less than the instructions do, because
caches and the kernel contribute to it, which are not counted. Without an access log, as in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import uvloop

from nproxy.telemetry import logs
from tests.budgets.counting import playing
from tests.budgets.player import Player

WIDE = 8
FEW, MANY = 40, 160
"""Numbers of requests: the difference between the two runs excludes everything that is done only once."""


def whole(player: Player) -> None:
    player.whole()


def narrow(player: Player) -> None:
    with player.stream(1):
        pass  # its first text and its end


def wide(player: Player) -> None:
    with player.stream(WIDE):
        pass


PLAYS: dict[str, Callable[[Player], None]] = {"whole": whole, "narrow": narrow, "wide": wide}


async def play(name: str, times: int) -> None:
    """Play so many requests with a gateway, one after the other."""

    def all_of_them(player: Player) -> None:
        for _ in range(times):
            PLAYS[name](player)

    logs.configure("warning", "json")
    async with playing() as player:
        await asyncio.to_thread(all_of_them, player)


def counted(name: str) -> float:
    """Return thousands of instructions of the gateway's thread for one request; the player runs in another thread."""
    few, many = (_counted(name, times) for times in (FEW, MANY))
    return (many - few) / (MANY - FEW) / 1000


def _counted(name: str, times: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told"
        command = ["valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={told}"]
        command += [sys.executable, "-m", "bench.gateway.instructions", "--play", name, "--times", str(times)]
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True, check=True)
        found = re.search(r"^totals: (\d+)", told.with_name("told-01").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--play", choices=PLAYS, help="play this, and tell nothing")
    parser.add_argument("--times", type=int, default=FEW)
    options = parser.parse_args()
    if options.play:
        uvloop.run(play(options.play, options.times))
        return
    print(f"Python {platform.python_version()}; thousand instructions")
    found = {name: counted(name) for name in PLAYS}
    print(f"a whole answer                 {found['whole']:8.0f}")
    print(f"a stream of two chunks         {found['narrow']:8.0f}")
    print(f"each further leg of one, n={WIDE}   {(found['wide'] - found['narrow']) / (WIDE - 1):8.0f}")


if __name__ == "__main__":
    main()

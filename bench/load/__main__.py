"""The load bars, each one command: what load the gateway can take, measured from outside with every byte checked.

    python -m bench.load wide --clients 1000 --n 8 --seconds 300
    python -m bench.load all              # the long forms one after the other, as `make soak` does
    python -m bench.load wide --short     # takes seconds; its checks are valid, its figures are not

Every run writes bench/results/load/NAME.json (unless --short) with the conditions, and updates docs/load.md's table.
Exit code 1: a check failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import uvloop

from bench.load import page
from bench.load.bars import BARS
from bench.load.stand import stand


async def measure(name: str, options: dict[str, float], *, record: bool) -> bool:
    """Run one bar; returns whether it holds."""
    print(f"{name}: {BARS[name].says}\n  {options}", flush=True)
    conditions = page.conditions()
    with tempfile.TemporaryDirectory() as folder:
        async with stand(Path(folder)) as place:
            result = await BARS[name].on(place, options)
    print(json.dumps(result.figures, indent=1))
    checks = {**result.holds, **(result.long if record else {})}
    for what, held in checks.items():
        print(f"  {'holds' if held else 'FAILS'}  {what}")
    if record:
        told = {"line": result.line, "figures": result.figures, "checks": checks}
        page.write(name, {"conditions": conditions, "options": options, **told})
    return all(checks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = parser.add_subparsers(dest="bar", required=True)
    names.add_parser("all", help="the long forms, one after the other")
    for name, bar in BARS.items():
        words = names.add_parser(name, help=bar.says.replace("%", "%%"))
        words.add_argument("--short", action="store_true", help="seconds instead of minutes; nothing is recorded")
        for option, value in bar.long.items():
            words.add_argument(f"--{option.replace('_', '-')}", type=type(value))
    given = vars(parser.parse_args())
    wanted = list(BARS) if given["bar"] == "all" else [given["bar"]]
    held = True
    for name in wanted:
        short = bool(given.get("short"))
        options = BARS[name].short if short else BARS[name].long
        options = {**options, **{key: given[key] for key in options if given.get(key) is not None}}
        held = uvloop.run(measure(name, options, record=not short)) and held
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()

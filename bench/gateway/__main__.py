"""Compares gateways on this machine: one core for each gateway in turn, the load on another.

    python -m bench.gateway [--peers nginx,nproxy] [--only whole-64,paced] [--rounds 3] [--seconds 2] [--quick]

Installs the pinned versions, starts the gateways, plays every case against each of them in turn, as many rounds as
asked, and prints tables. A complete run (no --peers, --only or --quick) writes them to bench/results/gateway.json and
into docs/performance.md; with --record any run does. --name gateway-debian-python writes them under another name.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from bench.engine.options import chosen
from bench.gateway import page
from bench.gateway.accounting import cores, family, on_core, peak_mib
from bench.gateway.cases import CASES, Case
from bench.gateway.figures import Cell, Round, cell, told
from bench.gateway.measuring import held_pace, quietly
from bench.gateway.peers import DIRECT, FRONTS, NO_N, PEERS, Running
from bench.gateway.programs import upstream
from tests.compatibility.installing import Unavailable


def main(words: Sequence[str]) -> int:
    asked = _parser().parse_args(words)
    names = chosen(asked.peers, FRONTS, always=DIRECT)
    cases = {name: CASES[name] for name in chosen(asked.only, CASES)}
    if asked.quick:
        asked.rounds, asked.seconds = 1, 1.0
    whole = not (asked.peers or asked.only or asked.quick)
    result = run(names, cases, rounds=asked.rounds, seconds=asked.seconds)
    print(page.tables(result))
    recorded = whole or asked.record
    print(f"all of it: {page.record(result, asked.name) if recorded else page.kept(result)}", file=sys.stderr)
    return 0


def run(names: Sequence[str], cases: dict[str, Case], *, rounds: int, seconds: float) -> dict[str, Any]:
    """Play the cases against the gateways; returns the record."""
    gateway_core, load_core = cores()
    conditions = page.conditions(rounds=rounds, seconds=seconds, cores=(gateway_core, load_core))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gateway-")))
        stack.enter_context(on_core(load_core))
        port, load = stack.enter_context(upstream())
        peers, running = _started(stack, names, port, folder, gateway_core)
        cases = {
            name: replace(case, pace=held_pace(case.unmerged(), Running(port, None), [load])) if case.pace else case
            for name, case in cases.items()
        }
        found = _rounds(running, cases, [load], rounds, seconds)
        for name, gateway in running.items():
            peers[name]["cases"] = {
                case: told(cell(of, wanted=cases[case].wanted) if of else NO_N) for case, of in found[name].items()
            }
            if gateway.pid is not None and psutil.pid_exists(gateway.pid):
                peers[name]["rss_mib"] = round(peak_mib(family(gateway.pid)), 1)
    says = {name: {"says": case.says, "pace": case.pace, "unit": case.unit} for name, case in cases.items()}
    return {"conditions": conditions, "cases": says, "peers": peers}


def _started(
    stack: ExitStack, names: Sequence[str], port: int, folder: Path, core: int
) -> tuple[dict[str, dict[str, Any]], dict[str, Running]]:
    """Start gateways in front of the upstream at this port; returns what is known of each, and those that run.

    They run until the stack ends. Failures to start are recorded and printed.
    """
    peers: dict[str, dict[str, Any]] = {name: {} for name in names}
    running: dict[str, Running] = {}
    for name in names:
        own = folder / name.replace(" ", "-")
        own.mkdir()
        try:
            if peer := PEERS.get(name):
                peers[name] |= {"settings": peer.settings, "version": peer.version()}
            with on_core(core):
                started = FRONTS[name](port, own)
                running[name] = started.__enter__()
                stack.callback(_end, name, started)
        except (Unavailable, RuntimeError) as error:
            peers[name]["reason"] = str(error).splitlines()[0]
            print(f"{name}: {error}", file=sys.stderr)
    return peers, running


def _end(name: str, started: AbstractContextManager[Running]) -> None:
    """Stop a gateway; if it does not end properly, only print that, to keep the measurements."""
    try:
        started.__exit__(None, None, None)
    except RuntimeError as error:
        print(f"{name}: {error}", file=sys.stderr)


def _rounds(
    running: dict[str, Running], cases: dict[str, Case], load: list[int], rounds: int, seconds: float
) -> dict[str, dict[str, list[Round]]]:
    """Play each case against all gateways in turn, and repeat this for each round."""
    found: dict[str, dict[str, list[Round]]] = {name: {} for name in running}
    for number in range(rounds):
        for case_name, case in cases.items():
            for name, gateway in running.items():
                given = PEERS[name].n if name in PEERS else "unmerged"
                before = found[name].setdefault(case_name, [])
                if (case.n > 1 and given == NO_N) or any(one.errors for one in before):
                    continue
                played = case.unmerged() if given == "unmerged" else case
                before.append(quietly(played, gateway, load, seconds))
                at = f"{case_name} at {case.pace}/s" if case.pace else case_name
                print(f"{number + 1}/{rounds} {at:17} {name:24} {_line(before[-1])}", flush=True)
    return found


def _line(one: Round) -> str:
    found = cell([one])
    if not isinstance(found, Cell):
        return found
    busy = f"gateway {one.gateway_busy:4.0%} of a core, load {one.load_busy:4.0%}"
    return f"{one.rate:9,.0f}/s {one.cpu_us:8.2f} us {one.first_ms:8.3f} ms  {busy}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.gateway", description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help=f"some of {', '.join(PEERS)}; with commas between")
    parser.add_argument("--only", help=f"some of {', '.join(CASES)}; with commas between")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each case, gateway and round")
    parser.add_argument("--quick", action="store_true", help="one round of one second, to see that it works")
    parser.add_argument("--record", action="store_true", help="write what was found, whatever was left out")
    parser.add_argument("--name", default=page.NAME, help="of the record and of its part of the page")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Compares checkouts of nproxy in turns: whether a change makes it faster, to about one percent.

    python -m bench.gateway.turns CHECKOUT[@PYTHON] ... [--only whole-64,first] [--starts 4] [--rounds 5] [--seconds 1]

A checkout is a folder. It is run by this Python unless another one is named, whose environment must then have nproxy's
dependencies. Each runs in a process of its own, and the bare relay in another; rounds are short, and each has all of
them in turn. All are restarted several times: two processes of the same code differ by a twentieth, depending on where
their memory happens to be, and the same process by a tenth from one minute to the next. So what counts are the medians
over all rounds of all starts, and each round's ratio to the bare relay's of the same round.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.engine.options import chosen
from bench.gateway.accounting import cores, on_core
from bench.gateway.cases import IN_TURNS, Case
from bench.gateway.figures import BARE, Round, cell
from bench.gateway.measuring import quietly
from bench.gateway.page import markdown
from bench.gateway.peers import PEERS, Peer, Running, Scene
from bench.gateway.programs import upstream

Rounds = Mapping[str, Mapping[str, Sequence[Round]]]
"""The results: by case, then by gateway, in the order of the rounds."""


def checkout(word: str) -> tuple[str, Peer]:
    """Return a name for a checkout, and how it is run. Raises SystemExit if it is not one."""
    path, _, python = word.partition("@")
    folder = Path(path).resolve()
    if not (folder / "nproxy" / "__main__.py").exists():
        sys.exit(f"{path} is no checkout of nproxy")

    def argv(scene: Scene) -> Sequence[str | Path]:
        words = ("-P", "-m", "nproxy", "serve", "--config", scene.settings, "--log-level", "warning")
        return [python or sys.executable, *words]

    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=folder, check=False
    )
    named = f"{word} ({commit.stdout.strip() or 'unknown'})"
    return named, replace(PEERS["nproxy"], argv=argv, environment=lambda: {"PYTHONPATH": str(folder)})


def play(peers: Mapping[str, Peer], cases: Mapping[str, Case], *, starts: int, rounds: int, seconds: float) -> Rounds:
    """Play all cases against all gateways in turn. Raises RuntimeError if an answer was not complete."""
    found: dict[str, dict[str, list[Round]]] = {case: {name: [] for name in peers} for case in cases}
    gateway_core, load_core = cores()
    for start in range(starts):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gateway-")))
            stack.enter_context(on_core(load_core))
            port, load = stack.enter_context(upstream())
            running: dict[str, Running] = {}
            for place, (name, peer) in enumerate(peers.items()):
                own = folder / str(place)
                own.mkdir()
                with on_core(gateway_core):
                    running[name] = stack.enter_context(peer.started(port, own))
            for _ in range(rounds):
                for case_name, case in cases.items():
                    for name, peer in peers.items():
                        asked = case if peer.n == "own" else case.unmerged()
                        one = quietly(asked, running[name], [load], seconds)
                        if one.errors:
                            raise RuntimeError(f"{name}, {case_name}: {cell([one])}")
                        found[case_name][name].append(one)
        print(f"{start + 1} of {starts} starts", file=sys.stderr)
    return found


def table(found: Rounds, base: str = BARE, of: str = "in bare relays") -> str:
    """Return the medians as Markdown, their ratios to those of one gateway, and the minima.

    base: the gateway. of: what the column of ratios is called.
    """
    rows = []
    for case, gateways in found.items():
        bare = gateways[base]
        for name, rounds in gateways.items():
            cpu, first = [one.cpu_us for one in rounds], [one.first_ms for one in rounds]
            by_bare = statistics.median(one.cpu_us / other.cpu_us for one, other in zip(rounds, bare, strict=True))
            words = [f"{min(cpu):.1f}", f"{statistics.median(cpu):.1f}", f"{by_bare:.3f}"]
            words += [f"{min(first):.3f}", f"{statistics.median(first):.3f}"] if any(first) else ["-", "-"]
            rows.append((case, name, *words))
    head = ("case", "gateway", "CPU us each: least", "median", of, "first word, ms: least", "median")
    return markdown(head, rows)


def add_lengths(parser: argparse.ArgumentParser, starts: int) -> None:
    """Add the options that say how long `play` takes. starts: the default."""
    parser.add_argument("--starts", type=int, default=starts, help="how often all are started anew")
    parser.add_argument("--rounds", type=int, default=5, help="of each start")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each case, gateway and round")


def main(words: Sequence[str]) -> int:
    """Play, and print the table."""
    parser = argparse.ArgumentParser(prog="bench.gateway.turns", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkouts", nargs="+", metavar="CHECKOUT[@PYTHON]")
    parser.add_argument("--only", default="whole-64", help=f"some of {', '.join(IN_TURNS)}; with commas between")
    add_lengths(parser, starts=4)
    asked = parser.parse_args(words)
    cases = {name: IN_TURNS[name] for name in chosen(asked.only, IN_TURNS, fail=parser.error)}
    peers = {BARE: PEERS[BARE], **dict(map(checkout, asked.checkouts))}
    print(table(play(peers, cases, starts=asked.starts, rounds=asked.rounds, seconds=asked.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Compare the engine on the CPU with its peers: n choices of one prompt, with the default model's weights for all.

    python -m bench.engine [--peers NAME,...] [--prompts 509,1999] [--n 1,4,8,16,32] [--rounds 3] [--quick]

Starts ours (through the gateway, in int8, the engine's server alone), llama.cpp's server, vLLM, OpenVINO GenAI, and
transformers' generate and continuous batching. All get prompts of the same tokens, one peer after the other: 64 tokens
per choice, at temperature 1, regardless of any end of text. Each is warmed up. All prompts begin differently, so that a
cache helps only within a request. The tokens of each answer are counted; a cell with wrong counts has no result. After
a cell takes longer than --patience seconds, neither it nor the wider cells of its prompt are asked again.

Prints a table. If nothing was left out, also writes it to bench/results/engine-cpu.json and docs/performance.md.
Processors that multiply bfloat16, in vectors or in tiles (AMX), and processors without AVX-512 give different results;
theirs go to engine-cpu-bf16.json, engine-cpu-amx.json or engine-cpu-avx2.json and to a table of their own.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

import psutil

from bench.engine.cells import NEW, cells
from bench.engine.options import numbers
from bench.engine.page import conditions, family, put, taken, write
from bench.engine.peers import PEERS, THREADS, dtype
from bench.engine.playing import Questions, play
from bench.engine.table import tables
from bench.engine.weights import packed
from engine.text.tokenizer import load_tokenizer

PROMPTS, WIDTHS, ROUNDS = (509, 1999), (1, 4, 8, 16, 32), 3
QUICK_PROMPTS, QUICK_WIDTHS, QUICK_ROUNDS, QUICK_NEW = (109,), (1, 2), 1, 8
PATIENCE = 20.0


def main(words: Sequence[str]) -> int:
    """Run what the arguments ask for; the exit code is 1 if a cell of ours failed or was given up."""
    asked = _parser().parse_args(words)
    names = asked.peers or list(PEERS)
    if asked.quick:
        asked.prompts, asked.n = asked.prompts or QUICK_PROMPTS, asked.n or QUICK_WIDTHS
    prompts, widths = tuple(asked.prompts or PROMPTS), tuple(sorted(asked.n or WIDTHS))
    new = QUICK_NEW if asked.quick else NEW
    rounds = asked.rounds or (QUICK_ROUNDS if asked.quick else ROUNDS)
    settings = {"threads": THREADS, "dtype": dtype(), "rounds": rounds, "new": new, "patience_s": asked.patience}
    told = {**conditions(), **settings, "memory_free_mib": psutil.virtual_memory().available >> 20}
    for key, value in told.items():
        print(f"{key:20} {value}")
    grid = cells(prompts, widths)
    encode = load_tokenizer(packed()).encode
    rows = play({name: PEERS[name] for name in names}, Questions(encode, new), grid, rounds, asked.patience)
    text = taken(told) + tables(rows, grid)
    print(text)
    result = {"conditions": told, "peers": {name: row.as_json() for name, row in rows.items()}}
    if asked.out:
        write(asked.out, result)
    elif not asked.quick and (set(names), prompts, widths) == (set(PEERS), PROMPTS, WIDTHS):
        write(f"engine-cpu{family(told)}", result)
        put(f"engine{family(told)}", text)
    return int(any(seen.wrong for row in rows.values() if row.ours for seen in row.cells.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.engine", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", type=_names, help=f"some only, by commas: {', '.join(PEERS)} (all)")
    parser.add_argument("--prompts", type=numbers, help="lengths in tokens, by commas (509,1999)")
    parser.add_argument("--n", type=numbers, help="choices, by commas (1,4,8,16,32)")
    parser.add_argument("--rounds", type=int, help="(3)")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds of a cell (%(default)g)")
    parser.add_argument("--quick", action="store_true", help="one round of small cells: does everything run?")
    parser.add_argument("--out", help="write bench/results/OUT.json, whatever was left out")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(PEERS):
        raise argparse.ArgumentTypeError(f"no such peer: {', '.join(sorted(unknown))}; there are: {', '.join(PEERS)}")
    return names


def _leave(number: int, frame: object) -> None:
    """Handle SIGTERM like Ctrl-C, so that all that was started ends."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing is written")

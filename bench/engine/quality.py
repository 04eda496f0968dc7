"""Measure what a form of the weights costs in quality: int8 against bfloat16, and both against float32.

    python -m bench.engine.quality [--forms float32,bfloat16,int8] [--out NAME]

The default model reads bench/engine/quality.txt, which never changes, in windows of 1,024 tokens: its perplexity, and
how often two forms have the same most likely token. Then it continues each of 20 prompts greedily by 64 tokens: how
many of these are equal, and after how many the first one differs. Everything goes through engine.library, on the CPU.
Prints a table and, with all forms, writes it to bench/results/quality.json and docs/performance.md.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from bench.engine.options import as_the_engine_runs
from bench.engine.page import conditions, put, taken, write
from bench.engine.weights import packed
from engine.library import Engine
from engine.text.tokenizer import load_tokenizer

TEXT = Path(__file__).with_name("quality.txt")
WINDOW = 1024
NEW = 64
FORMS: Mapping[str, Mapping[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
}
"""The engine's options by form; each form is compared with those before it."""
PROMPTS = (
    "The lighthouse keeper opened the door and saw",
    "A good way to learn a language is to",
    "Water boils at a lower temperature on a mountain because",
    "Dear Sir, I am writing to you about the",
    "To bake a loaf of bread you need",
    "The three largest cities of Europe are",
    "When the train stopped between two stations, the passengers",
    "def greatest_common_divisor(a, b):",
    "In the year 1900 most people lived",
    "The difference between weather and climate is",
    "Once upon a time there was a fox who",
    "The committee met on Monday to decide",
    "Plants turn light into sugar by",
    "1, 2, 3, 5, 8, 13,",
    "If it rains tomorrow, we will",
    "The first rule of this club is",
    "She looked at the map again, and then",
    "An electric motor works by",
    "Question: Why is the sky blue? Answer:",
    "The house at the end of the street had",
)


@dataclass(frozen=True, slots=True)
class Read:
    """What a form made of the text and the prompts.

    logprobs: of the text's tokens, without the first token of each window. likeliest: the most likely token at each of
    these positions. greedy: the continuations, one row per prompt.
    """

    logprobs: tuple[float, ...]
    likeliest: tuple[int, ...]
    greedy: tuple[tuple[int, ...], ...]

    @property
    def perplexity(self) -> float:
        """The exponential of the mean negative log probability of a token."""
        return math.exp(-sum(self.logprobs) / len(self.logprobs))


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two forms agree.

    likeliest, greedy: shares of equal tokens. prefix: the mean number of tokens before the first that differs.
    """

    likeliest: float
    greedy: float
    prefix: float


def agreement(one: Read, other: Read) -> Agreement:
    """Return how far two forms agree, position by position."""
    rows = list(zip(one.greedy, other.greedy, strict=True))
    prefixes = [common(mine, theirs) for mine, theirs in rows]
    equal = [share(mine, theirs) for mine, theirs in rows]
    return Agreement(share(one.likeliest, other.likeliest), sum(equal) / len(equal), sum(prefixes) / len(prefixes))


def share(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the share of positions at which both have the same token."""
    return sum(mine == theirs for mine, theirs in zip(one, other, strict=True)) / len(one)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of leading tokens that both have in common."""
    return next((at for at, (mine, theirs) in enumerate(zip(one, other, strict=True)) if mine != theirs), len(one))


def windows(tokens: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Yield the text in parts that are read independently; an incomplete part at its end is left out."""
    for at in range(0, len(tokens) - size + 1, size):
        yield tuple(tokens[at : at + size])


def read(options: Mapping[str, Any], text: Sequence[int]) -> Read:
    """Let the model in one form read the text and continue the prompts."""
    logprobs: list[float] = []
    likeliest: list[int] = []
    with Engine(packed(), device="cpu", max_logprobs=1, prefix_cache=False, **options) as engine:
        for window in windows(text, WINDOW):
            [answer] = engine.generate([window], prompt_logprobs=1, max_tokens=1)
            told = [one for one in answer.prompt_logprobs or () if one is not None]
            logprobs += [one.own for one in told]
            likeliest += [one.top[0][0] for one in told]
        answers = engine.generate(list(PROMPTS), temperature=0, max_tokens=NEW, ignore_eos=True)
        greedy = tuple([answer.choices[0].tokens for answer in answers])
    gc.collect()  # free these weights before the next form is loaded
    return Read(tuple(logprobs), tuple(likeliest), greedy)


def table(reads: Mapping[str, Read]) -> str:
    """Return a table with a row for each form, and one with a row for each pair."""
    least = next(iter(reads.values())).perplexity
    lines = ["| | perplexity | by the first's |", "|---|---|---|"]
    lines += [f"| {name} | {one.perplexity:.3f} | {one.perplexity / least:.4f}x |" for name, one in reads.items()]
    lines += ["", "| | likeliest token equal | greedy tokens equal | equal tokens before the first other |"]
    lines += ["|---|---|---|---|"]
    for (first, one), (second, other) in combinations(reads.items(), 2):
        found = agreement(other, one)
        shares = f"{found.likeliest:.1%} | {found.greedy:.1%} | {found.prefix:.1f} of {NEW}"
        lines.append(f"| {second} and {first} | {shares} |")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str]) -> None:
    """Read in all forms, print the tables and write them."""
    parser = argparse.ArgumentParser(prog="bench.engine.quality", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--forms", default=",".join(FORMS), help="some of them, by commas (%(default)s)")
    parser.add_argument("--out", help="write bench/results/OUT.json, whatever was left out")
    asked = parser.parse_args(words)
    forms = asked.forms.split(",")
    if unknown := set(forms) - set(FORMS):
        parser.error(f"no such form: {', '.join(sorted(unknown))}; there are: {', '.join(FORMS)}")
    text = load_tokenizer(packed()).encode(TEXT.read_text())
    counts = {"tokens": len(text) // WINDOW * WINDOW, "window": WINDOW, "prompts": len(PROMPTS), "new": NEW}
    told = {**conditions(), **counts}
    reads: dict[str, Read] = {}
    for form in forms:
        print(f"reading as {form}", file=sys.stderr, flush=True)
        reads[form] = read(FORMS[form], text)
    shown = taken(told) + table(reads)
    print(shown)
    agreed = {
        f"{other} and {one}": asdict(agreement(reads[other], reads[one])) for one, other in combinations(forms, 2)
    }
    perplexities = {name: round(one.perplexity, 4) for name, one in reads.items()}
    result = {"conditions": told, "perplexity": perplexities, "agreement": agreed}
    if asked.out or forms == list(FORMS):
        write(asked.out or "quality", result)
    if not asked.out and forms == list(FORMS):
        put("quality", shown)


if __name__ == "__main__":
    as_the_engine_runs("bench.engine.quality", sys.argv[1:])
    main(sys.argv[1:])

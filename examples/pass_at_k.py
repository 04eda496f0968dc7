"""Estimate how often at least one of k answers is right, from n answers to each problem: python examples/pass_at_k.py

pass@k is computed with the unbiased estimator of Chen et al. (2021, arXiv:2107.03374): if c of n answers are right,
k answers drawn from them without replacement contain no right one with probability C(n - c, k) / C(n, k).

OPENAI_BASE_URL: where nproxy listens (default http://127.0.0.1:8000/v1). MODEL: the model's id there.
"""

from __future__ import annotations

import os
import re
from math import comb
from statistics import fmean

from openai import OpenAI

PROBLEMS = {"2 + 2": "4", "10 - 3": "7", "3 * 5": "15"}
N = 8
KS = (1, 2, 4, 8)

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the estimate. n: answers drawn. c: the number of right ones. k: at most n."""
    return 1 - comb(n - c, k) / comb(n, k)


def right_answers(problem: str, solution: str) -> int:
    answer = client.chat.completions.create(
        model=os.environ.get("MODEL", "smollm2-135m-instruct"),
        messages=[{"role": "user", "content": f"What is {problem}? Answer with the number only."}],
        n=N,
        temperature=0.8,
        max_tokens=12,
    )
    return sum(re.findall(r"\d+", choice.message.content or "")[-1:] == [solution] for choice in answer.choices)


def main() -> None:
    counts = {problem: right_answers(problem, solution) for problem, solution in PROBLEMS.items()}
    for problem, count in counts.items():
        print(f"{problem}: {count} of {N} are right")
    for k in KS:
        print(f"pass@{k} = {fmean(pass_at_k(N, count, k) for count in counts.values()):.3f}")


if __name__ == "__main__":
    main()

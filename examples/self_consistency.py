"""Find the answer on which most chains of thought agree: python examples/self_consistency.py [QUESTION]

Self-consistency (Wang et al., 2022, arXiv:2203.11171): several chains of thought are drawn, only their last numbers
are compared, and the most frequent number wins.

OPENAI_BASE_URL: where nproxy listens (default http://127.0.0.1:8000/v1). MODEL: the model's id there.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter

from openai import OpenAI

N = 8

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)


def last_number(text: str) -> str | None:
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return numbers[-1] if numbers else None


def main() -> None:
    question = " ".join(sys.argv[1:]) or "Anna has 3 bags with 4 apples each. How many apples does she have?"
    answer = client.chat.completions.create(
        model=os.environ.get("MODEL", "smollm2-135m-instruct"),
        messages=[{"role": "user", "content": f"{question} Think step by step, and end with the number."}],
        n=N,
        temperature=0.7,
        max_tokens=48,
    )
    votes = Counter(number for choice in answer.choices if (number := last_number(choice.message.content or "")))
    for number, count in votes.most_common():
        print(f"{count} of {N}: {number}")
    if not votes:
        print("no choice holds a number")


if __name__ == "__main__":
    main()

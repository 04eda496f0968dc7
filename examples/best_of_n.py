"""Find the answer that the model itself considers most likely, out of several: python examples/best_of_n.py [QUESTION]

It is chosen twice: here, by the mean log probability of each choice's tokens, and by nproxy, which returns only the
best choice (`best_of`). Both requests use the same seed, so they find the same answer.

OPENAI_BASE_URL: where nproxy listens (default http://127.0.0.1:8000/v1). MODEL: the model's id there.
"""

from __future__ import annotations

import os
import sys
from statistics import fmean

from openai import OpenAI
from openai.types.chat.chat_completion import Choice

N = 5

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)


def mean_logprob(choice: Choice) -> float:
    tokens = choice.logprobs.content if choice.logprobs is not None else None
    return fmean(token.logprob for token in tokens) if tokens else float("-inf")


def main() -> None:
    question = " ".join(sys.argv[1:]) or "Why is the sky blue? Answer in one sentence."
    asked = {
        "model": os.environ.get("MODEL", "smollm2-135m-instruct"),
        "messages": [{"role": "user", "content": question}],
        "temperature": 1.0,
        "seed": 1,
        "max_tokens": 16,
    }
    drawn = client.chat.completions.create(**asked, n=N, logprobs=True)  # type: ignore[call-overload]
    for choice in sorted(drawn.choices, key=mean_logprob, reverse=True):
        print(f"{mean_logprob(choice):6.2f}  {' '.join(choice.message.content.split())}")
    best = client.chat.completions.create(**asked, extra_body={"best_of": N})  # type: ignore[call-overload]
    print(f"best_of: {' '.join(best.choices[0].message.content.split())}")


if __name__ == "__main__":
    main()

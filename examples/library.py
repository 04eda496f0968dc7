"""Use the built-in engine in a program, without a server: python examples/library.py [QUESTION]

MODEL: a Hugging Face folder or a .gguf file; if unset, the default model.
"""

from __future__ import annotations

import os
import sys

from engine import Engine
from nproxy import models

N = 4


def main() -> None:
    question = " ".join(sys.argv[1:]) or "Give me one idea for a rainy afternoon."
    chat = [{"role": "user", "content": question}]
    texts = [""] * N
    with Engine(os.environ.get("MODEL") or models.fetch(models.DEFAULT)) as engine:
        for piece in engine.stream(chat, n=N, temperature=0.7, top_p=0.9, max_tokens=60):
            texts[piece.index] += piece.text
            if piece.finish_reason is not None:
                print(f"choice {piece.index} ({piece.finish_reason}): {texts[piece.index]}\n")
        longest = max(texts, key=len)
        [more] = engine.generate(longest, n=2, max_tokens=8, logprobs=0)
        for choice in more.choices:
            mean = sum(one.own for one in choice.logprobs or ()) / len(choice.tokens)
            print(f"... {choice.text!r} (mean log probability {mean:.2f})")


if __name__ == "__main__":
    main()

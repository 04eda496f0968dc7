"""Get several answers without streaming, with the official OpenAI client: python examples/openai_whole.py [QUESTION]

OPENAI_BASE_URL: where nproxy listens (default http://127.0.0.1:8000/v1). MODEL: the model's id there.
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)


def main() -> None:
    question = " ".join(sys.argv[1:]) or "Give me one idea for a rainy afternoon."
    raw = client.chat.completions.with_raw_response.create(
        model=os.environ.get("MODEL", "smollm2-135m-instruct"),
        messages=[{"role": "user", "content": question}],
        n=4,
        temperature=0.7,
        max_tokens=32,
    )
    answer = raw.parse()
    for choice in answer.choices:
        print(f"choice {choice.index} ({choice.finish_reason}): {choice.message.content}\n")
    print("made by:", raw.headers.get("x-nproxy-mode"), "in", raw.headers.get("x-nproxy-legs"), "call(s)")
    if answer.usage is not None:  # the prompt counts once, regardless of n
        print(f"tokens: {answer.usage.prompt_tokens} read, {answer.usage.completion_tokens} written")


if __name__ == "__main__":
    main()

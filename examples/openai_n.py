"""Stream four answers side by side with the official OpenAI client: python examples/openai_n.py [QUESTION]

It needs `openai` and `rich`. OPENAI_BASE_URL: where nproxy listens (default http://127.0.0.1:8000/v1). MODEL: the
model's id there.
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel

N = 4


def view(texts: list[str], reasons: list[str | None], width: int) -> Columns:
    panels = [
        Panel(text, title=f"choice {index}", subtitle=reasons[index] or "...", width=width // N, title_align="left")
        for index, text in enumerate(texts)
    ]
    return Columns(panels, padding=0)


def main() -> None:
    question = " ".join(sys.argv[1:]) or "Give me one idea for a rainy afternoon."
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "unused"),
    )
    texts, reasons = [""] * N, [None] * N
    console = Console()
    with Live(console=console, refresh_per_second=12) as live:
        stream = client.chat.completions.create(
            model=os.environ.get("MODEL", "smollm2-135m-instruct"),
            messages=[{"role": "user", "content": question}],
            n=N,
            temperature=0.7,
            top_p=0.9,
            max_tokens=60,
            stream=True,
        )
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            live.update(view(texts, reasons, console.width))


if __name__ == "__main__":
    main()

"""Several answers through LangChain: python examples/langchain_n.py (pip install langchain-openai)

`generate` returns all choices; `invoke` returns only the first. OPENAI_BASE_URL: where nproxy listens (default
http://127.0.0.1:8000/v1). MODEL: the model's id there.
"""

from __future__ import annotations

import os

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

chat = ChatOpenAI(
    model=os.environ.get("MODEL", "smollm2-135m-instruct"),
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
    n=3,
    temperature=0.8,
    max_tokens=24,
)


def main() -> None:
    result = chat.generate([[HumanMessage("Write one sentence about the sea.")]])
    for index, generation in enumerate(result.generations[0]):
        print(f"choice {index}: {' '.join(generation.text.split())}")
    print((result.llm_output or {})["token_usage"])


if __name__ == "__main__":
    main()

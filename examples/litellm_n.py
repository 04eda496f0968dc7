"""Several answers through LiteLLM: python examples/litellm_n.py (pip install litellm)

OPENAI_BASE_URL: where nproxy listens (default http://127.0.0.1:8000/v1). MODEL: the model's id there.
"""

from __future__ import annotations

import os

import litellm


def main() -> None:
    answer = litellm.completion(
        model=f"openai/{os.environ.get('MODEL', 'smollm2-135m-instruct')}",  # any server with OpenAI's API
        api_base=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "unused"),
        messages=[{"role": "user", "content": "Write one sentence about the sea."}],
        n=3,
        temperature=0.8,
        max_tokens=24,
    )
    for choice in answer.choices:
        print(f"choice {choice.index}: {' '.join(choice.message.content.split())}")
    print(answer.usage.prompt_tokens, "tokens read,", answer.usage.completion_tokens, "written")


if __name__ == "__main__":
    main()

"""Get several answers that match a JSON schema, and validate them with pydantic: python examples/structured_output.py

OPENAI_BASE_URL: where nproxy listens (default http://127.0.0.1:8000/v1). MODEL: the model's id there.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)


class Animal(BaseModel):
    """An animal, as each answer describes one."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=20)]
    lives: Literal["on land", "in water", "in the air"]
    legs: Annotated[int, Field(ge=0, le=100)]


def main() -> None:
    answer = client.chat.completions.create(
        model=os.environ.get("MODEL", "smollm2-135m-instruct"),
        messages=[{"role": "user", "content": "Describe an animal as JSON."}],
        n=4,
        temperature=0.8,
        max_tokens=60,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "animal", "schema": Animal.model_json_schema()},
        },
    )
    for choice in answer.choices:
        if choice.finish_reason == "length":  # the JSON was cut off
            print(f"choice {choice.index} took more than max_tokens")
            continue
        animal = Animal.model_validate_json(choice.message.content or "")
        print(f"choice {choice.index}: {animal!r}")


if __name__ == "__main__":
    main()

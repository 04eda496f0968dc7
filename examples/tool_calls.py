"""Let several choices call a tool, and make the call on which most of them agree: python examples/tool_calls.py

OPENAI_BASE_URL: where nproxy listens (default http://127.0.0.1:8000/v1). MODEL: the model's id there.
"""

from __future__ import annotations

import json
import os
from collections import Counter

from openai import OpenAI
from openai.types.chat import ChatCompletionToolParam

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)

CONVERT: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "convert",
        "description": "Convert a temperature to another unit.",
        "parameters": {
            "type": "object",
            "properties": {
                "degrees": {"type": "integer", "minimum": -300, "maximum": 300},
                "to": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["degrees", "to"],
            "additionalProperties": False,
        },
    },
}


def convert(degrees: float, to: str) -> float:
    return (degrees - 32) * 5 / 9 if to == "celsius" else degrees * 9 / 5 + 32


def main() -> None:
    answer = client.chat.completions.create(
        model=os.environ.get("MODEL", "smollm2-135m-instruct"),
        messages=[{"role": "user", "content": "What is 20 degrees celsius in fahrenheit? Use the tool."}],
        tools=[CONVERT],
        tool_choice="required",
        n=5,
        temperature=0.7,
        max_tokens=60,
    )
    votes: Counter[str] = Counter()
    for choice in answer.choices:
        for call in choice.message.tool_calls or ():
            if call.type == "function" and choice.finish_reason != "length":
                arguments = json.loads(call.function.arguments)
                print(f"choice {choice.index} calls {call.function.name}({arguments})")
                votes[json.dumps(arguments, sort_keys=True)] += 1
    if votes:
        [(agreed, count)] = votes.most_common(1)
        print(f"{count} of {len(answer.choices)} agree on {agreed}: {convert(**json.loads(agreed)):g} degrees")


if __name__ == "__main__":
    main()

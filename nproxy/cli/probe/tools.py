"""Whether chat calls a tool that it must call; what a model does without being told says little about its server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from nproxy.cli.probe.findings import Finding, no, unknown, yes
from nproxy.cli.probe.legacy import unanswered
from nproxy.cli.probe.questions import Asking, Form, Reply
from nproxy.cli.probe.reading import choices_of, read
from nproxy.openai.jsonvalue import JSON

NAME = "get_weather"
TOOL: Mapping[str, JSON] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CHOICES: Mapping[str, JSON] = {"required": "required", "named": {"type": "function", "function": {"name": NAME}}}
"""Ways to say that the tool must be called: llama.cpp supports only the first, llama-cpp-python only the second."""
QUESTION = "What is the weather in Paris?"
TOKENS = 64


def must(form: Form) -> Asking[Finding]:
    """Offer one tool and require its call, in one way and then the other. The value of a yes is the way that works."""
    form = replace(form, prompt=QUESTION, tokens=TOKENS)
    found = unknown("not asked")
    for way, choice in CHOICES.items():
        found = _called((yield form.ask(tools=[dict(TOOL)], tool_choice=choice)), way)
        if found.verdict == "yes":
            break
    return found


def _called(asked: Reply, way: str) -> Finding:
    value = asked.json()
    if read(asked) is None or not isinstance(value, dict):
        return unanswered(asked)
    if {name for choice in choices_of(value) for name in _names(choice)} == {NAME}:  # some call it more than once
        return yes(f"tool_choice {way}: it was called", way)
    return no(f"tool_choice {way}: it was not called")


def _names(choice: Mapping[str, JSON]) -> Iterator[JSON]:
    """Yield the names of the tools that a choice calls."""
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        yield function.get("name") if isinstance(function, dict) else None

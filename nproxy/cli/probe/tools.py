"""Whether chat calls the tool that it must call: what a model does that is free to says little of its server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from nproxy.cli.probe.findings import Finding, no, unknown, yes
from nproxy.cli.probe.legacy import unanswered
from nproxy.cli.probe.questions import Asking, Form
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
CHOICE: Mapping[str, JSON] = {"type": "function", "function": {"name": NAME}}
QUESTION = "What is the weather in Paris?"
TOKENS = 64


def named(form: Form) -> Asking[Finding]:
    """Offer one tool and demand its call."""
    asked = yield replace(form, prompt=QUESTION, tokens=TOKENS).ask(tools=[dict(TOOL)], tool_choice=dict(CHOICE))
    value = asked.json()
    if read(asked) is None or not isinstance(value, dict):
        return unanswered(asked)
    called = [name for choice in choices_of(value) for name in _called(choice)]
    if called == [NAME]:
        return yes("the tool that was named is called")
    return unknown(f"{len(called)} calls came") if called else no("ignored: no call came")


def _called(choice: Mapping[str, JSON]) -> Iterator[JSON]:
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        yield function.get("name") if isinstance(function, dict) else None

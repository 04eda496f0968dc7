"""The engine inside a program: a model that is loaded in this process, asked with the fields of the API.

    with Engine("path/to/model") as engine:
        for choice in engine.chat([{"role": "user", "content": "Name a color."}], n=4, seed=1).choices:
            print(choice.text)

The same requests with the same seeds give the same answers as over HTTP.
"""

from engine.library.answers import Answer, Choice, Delta, Usage
from engine.library.engine import Engine
from engine.library.options import (
    ChatOptions,
    EngineOptions,
    Messages,
    RequestOptions,
    StreamingOptions,
    TextOptions,
)
from engine.messages import Logprobs
from engine.text.parsers.parts import Content, Part, Reasoning, ToolArguments, ToolStart

__all__ = [
    "Answer",
    "ChatOptions",
    "Choice",
    "Content",
    "Delta",
    "Engine",
    "EngineOptions",
    "Logprobs",
    "Messages",
    "Part",
    "Reasoning",
    "RequestOptions",
    "StreamingOptions",
    "TextOptions",
    "ToolArguments",
    "ToolStart",
    "Usage",
]

"""gpt-oss's answers: messages on channels, in OpenAI's harmony format.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

The openai-harmony package reads tokens with an encoding that it downloads at first use; here the model's own tokenizer
has already turned them into text.
"""

from __future__ import annotations

from collections.abc import Callable

import regex

from engine.text.parsers.machine import Machine
from engine.text.parsers.parts import Content, Part, Reasoning, ToolArguments, ToolStart

SHOWN = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")

_HEADER = regex.compile(r"<\|(?:start|channel)\|>")
_HEADER_END = regex.compile(r"<\|(?:message|end|call|return)\|>")
_BODY_END = regex.compile(r"<\|(?:end|call|return|start|channel)\|>")
_CHANNEL = regex.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = regex.compile(r"\bto=([^\s<]+)")
_FUNCTIONS = "functions."


class HarmonyParser(Machine):
    """One choice's parser.

    Analysis is reasoning, commentary and final are content. A message to a function is a call if calls are parsed; one
    to any other recipient is reasoning. Messages of one kind are separated by a line break. A header that was cut off
    is dropped.
    """

    def __init__(self, new_id: Callable[[], str], *, calls: bool) -> None:
        super().__init__(self._between)
        self._new_id = new_id
        self._finds_calls = calls
        self._part: Callable[[str], Part] = Content
        self._begun: set[Callable[[str], Part]] = set()  # kinds that had a message already
        self._apart = ""
        self._calls = 0
        self._needs_arguments = False

    def _between(self, parts: list[Part], final: bool) -> bool:
        """Wait for a message to begin; anything else here is content."""
        found = _HEADER.search(self._text, partial=not final)
        before = self._text if found is None else self._text[: found.start()]
        if text := before if final and found is None else before.rstrip():
            parts.append(Content(text))
        if found is None or found.partial:
            self._text = self._text[len(text) :]
            return False
        self._text = self._text[found.start() :]
        self._state = self._in_header
        return True

    def _in_header(self, parts: list[Part], final: bool) -> bool:
        found = _HEADER_END.search(self._text, partial=not final)
        if found is None or found.partial:
            return False
        header, self._text = self._text[: found.start()], self._text[found.end() :]
        if found[0] != "<|message|>":
            parts.append(Content(header))
            self._state = self._between
            return True
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        self._open(parts, channel[1] if channel else "", recipient[1] if recipient else "")
        self._state = self._in_body
        return True

    def _open(self, parts: list[Part], channel: str, recipient: str) -> None:
        self._apart = ""
        if recipient.startswith(_FUNCTIONS) and self._finds_calls:
            index = self._calls
            self._calls += 1
            parts.append(ToolStart(index, f"call_{self._new_id()}", recipient.removeprefix(_FUNCTIONS)))
            self._part = lambda text: ToolArguments(index, text)
            self._needs_arguments = True
            return
        reasons = channel == "analysis" or (recipient and not recipient.startswith(_FUNCTIONS))
        self._part = Reasoning if reasons else Content
        self._apart = "\n" if self._part in self._begun else ""
        self._begun.add(self._part)

    def _in_body(self, parts: list[Part], final: bool) -> bool:
        found = _BODY_END.search(self._text, partial=not final)
        if text := self._text if found is None else self._text[: found.start()]:
            parts.append(self._part(self._apart + text))
            self._apart, self._needs_arguments = "", False
        self._text = self._text[len(text) :]
        ended = found is not None and not found.partial
        if self._needs_arguments and (ended or final):
            self._needs_arguments = False
            parts.append(self._part("{}"))
        if found is None or not ended:
            return False
        if found[0] not in ("<|start|>", "<|channel|>"):
            self._text = self._text[found.end() - found.start() :]
        self._state = self._between
        return True

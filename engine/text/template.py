"""Chat templates: a model's own Jinja program that writes a conversation as one prompt text.

They are rendered like in `transformers` (the same options, filters and globals), in a sandbox whose values cannot be
changed, because a template is code from wherever the model came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from engine.errors import ModelError


class TemplateRejected(Exception):
    """The template could not write these messages, or refused to; the text is for the client."""


_ARGUMENTS = '{"needle": 1}'


class ChatTemplate:
    """A compiled template. `render` only reads it, so threads may share one.

    source: its text. variables: the names that it takes from outside, those of every template and its own.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        """`special`: the named special tokens (`bos_token` ...); raises ModelError for a syntax error."""
        self.source = source
        self._special = dict(special)
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
        except Exception as error:  # Jinja's own, and those of Python's compiler for what is nested too deeply
            raise ModelError(f"the model's chat template is not valid: {error}") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], *, generation: bool = True
    ) -> str:
        """Write the prompt, up to where the assistant's turn begins; without `generation` that beginning is left out.

        `variables` are the template's own switches (`enable_thinking` ...). Raises TemplateRejected for any failure
        inside, because a template may get data that its author never saw.
        """
        names = {**self._special, "tools": None, "documents": None, **variables}
        try:
            return self._template.render(**(names | {"messages": messages, "add_generation_prompt": generation}))
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise TemplateRejected(f"The model's chat template rejected the messages: {reason}") from error

    @cached_property
    def joins_arguments(self) -> bool:
        """Whether the arguments of earlier calls must be JSON text; otherwise the template wants them as objects.

        This is tried out: a template that converts to JSON would quote the quotes of a text, and one that joins texts
        fails with objects.
        """
        return _ARGUMENTS in (self._call("", _ARGUMENTS) or "")

    @cached_property
    def takes_null(self) -> bool:
        """Whether a message with calls may have null as its content: some templates check for it, some write "None"."""
        text = self._call(None, _ARGUMENTS if self.joins_arguments else json.loads(_ARGUMENTS))
        return text is not None and "None" not in text

    def _call(self, content: str | None, arguments: Any) -> str | None:
        """Return a conversation with a call; None if the template rejects it."""
        call = {"id": "a1b2c3d4e", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = (
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": content, "tool_calls": [call]},
        )
        try:
            return self.render(messages, {}, generation=False)
        except TemplateRejected:
            return None


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is simply written."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own attribute, declared there without ClassVar)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without HTML escapes; Jinja's own filter makes them, but no model was trained on them."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 (templates want the local date)

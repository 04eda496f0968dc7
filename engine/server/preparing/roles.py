"""The roles of a chat's messages, as the model's template knows them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.server.asking.chat import Message
from nproxy.openai.errors import invalid_request

_NAME = re.compile(r"[\w-]+")
_ROLES = ("system", "developer", "user", "assistant", "tool")
"""OpenAI's. A template may have further ones, such as Llama's "ipython"."""


def suit_roles(messages: Sequence[Message], source: str) -> tuple[Message, ...]:
    """Return the messages with roles that a template with this source takes; raise ApiError 400 for an unknown role.

    "developer" is OpenAI's newer name of "system". Templates that do not mention it would leave such a message out, or
    write a role that the model was not trained with.
    """
    return tuple([_suited(message, source, number) for number, message in enumerate(messages)])


def _suited(message: Message, source: str, number: int) -> Message:
    role = str(message["role"])
    if role not in _ROLES and not _mentions(source, role):
        param = f"messages.{number}.role"
        raise invalid_request(f"'{param}' must be one of {', '.join(_ROLES)}.", param=param, code="invalid_value")
    if role == "developer" and not _mentions(source, role):
        return {**message, "role": "system"}
    return message


def _mentions(source: str, role: str) -> bool:
    """Whether a template compares something with this role, or sets it. It also quotes texts that are no names."""
    return _NAME.fullmatch(role) is not None and (f'"{role}"' in source or f"'{role}'" in source)

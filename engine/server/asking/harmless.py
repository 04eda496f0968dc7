"""Fields that do not change the answer: they are accepted, but must have the types that OpenAI gives them."""

from __future__ import annotations

from engine.server.asking.members import Members
from nproxy.openai.errors import invalid_request, shorten
from nproxy.openai.refusals import wrong_type

_TEXTS = (
    "guided_decoding_backend",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "user",
)
_FLAGS = ("parallel_tool_calls", "store")
_MOST_METADATA, _LONGEST_KEY, _LONGEST_VALUE = 16, 64, 512
"""OpenAI's limits: keys, and characters of a key and of its text."""

HARMLESS = frozenset({*_TEXTS, *_FLAGS, "metadata", "prompt_cache_options"})
"""All fields that are checked here."""


def check_harmless(members: Members) -> None:
    """Raise ApiError 400 naming a field that has the wrong type."""
    for name in _TEXTS:
        value = members.get(name)
        if value is not None and not isinstance(value, str):
            raise wrong_type(name, "a string", value)
    for name in _FLAGS:
        members.flag(name)
    members.object("prompt_cache_options")
    _check_metadata(members)


def _check_metadata(members: Members) -> None:
    value = members.object("metadata")
    if len(value) > _MOST_METADATA:
        raise invalid_request(f"'metadata' may have at most {_MOST_METADATA} keys.", param="metadata")
    for key, text in value.items():
        if not isinstance(text, str):
            raise wrong_type(f"metadata.{shorten(key)}", "a string", text)
        if len(key) > _LONGEST_KEY or len(text) > _LONGEST_VALUE:
            most = f"{_LONGEST_KEY} characters in a key and {_LONGEST_VALUE} in its text"
            raise invalid_request(f"'metadata' may have at most {most}.", param="metadata")

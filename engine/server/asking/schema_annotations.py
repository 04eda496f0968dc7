"""What a JSON schema says beside its meaning: names that are no URIs, and formats that JSON Schema does not define.

Clients' libraries put titles into `$id`, type names with brackets into `$defs`, and their language's types into
`format`. To JSON Schema a name is a URI reference and an unknown format an annotation (2020-12, 8.2 and 7.2.3); the
library that compiles grammars refuses both. So names are escaped, and unknown formats and dialects are left out. It
reads patterns in Rust's syntax, so their classes are written for that.
"""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

from engine.char_classes import pattern_for_rust
from nproxy.openai.jsonvalue import JSON

_DIALECTS = frozenset(
    f"{dialect}{end}"
    for dialect in (
        "http://json-schema.org/draft-04/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    )
    for end in ("", "#")
)
"""Those that the library knows."""
_LETTERS = r"(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_URI = re.compile(rf"{_LETTERS}(?:#{_LETTERS})?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_IN_FRAGMENT = "/?:@!$&'()*+,;=-._~%"
_FORMATS = frozenset(
    {
        "date-time",
        "date",
        "time",
        "duration",
        "email",
        "idn-email",
        "hostname",
        "idn-hostname",
        "ipv4",
        "ipv6",
        "uri",
        "uri-reference",
        "iri",
        "iri-reference",
        "uuid",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
        "regex",
    }
)
"""Those that JSON Schema defines. One that cannot be enforced is refused when the grammar is compiled."""
_VALUES = frozenset({"const", "default", "enum", "example", "examples"})
BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose objects have names of any kind as keys, and schemas as values."""


def without_annotations(schema: JSON) -> JSON:
    """The schema with names that are URI references, and without formats and dialects that nobody knows.

    Its patterns, which are ECMA-262's, are written for Rust's regular expressions.
    """
    if isinstance(schema, list):
        return [without_annotations(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, JSON] = {}
    for key, value in schema.items():
        if key in _VALUES:
            made[key] = value
        elif key in BY_NAME and isinstance(value, dict):
            named = pattern_for_rust if key == "patternProperties" else str
            made[key] = {named(name): without_annotations(part) for name, part in value.items()}
        elif not isinstance(value, str):
            made[key] = without_annotations(value)
        elif key == "pattern":
            made[key] = pattern_for_rust(value)
        elif key == "$id":
            made[key] = _name(value)
        elif key == "$ref":
            made[key] = _reference(value)
        elif not (key == "$schema" and value not in _DIALECTS) and not (key == "format" and value not in _FORMATS):
            made[key] = value
    return made


def _name(text: str) -> str:
    """A URI reference for a name: itself if it is one."""
    return text if _is_uri(text) else quote(text, safe="/")


def _reference(text: str) -> str:
    """A reference whose parts are as `_name` and JSON pointers have them: a `%` that begins no escape is a letter."""
    document, mark, fragment = text.partition("#")
    fragment = re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", fragment)
    return _name(document) + mark + quote(fragment, safe=_IN_FRAGMENT)


def _is_uri(text: str) -> bool:
    if not _URI.fullmatch(text):
        return False
    scheme, colon, _ = re.split(r"[/?#]", text, maxsplit=1)[0].partition(":")
    try:
        urlsplit(text).port  # noqa: B018 - raises for a port that is no number
    except ValueError:
        return False
    return not colon or _SCHEME.fullmatch(scheme) is not None

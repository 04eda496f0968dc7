"""What a JSON schema says beside its meaning: names that are no URIs, and formats that JSON Schema does not define.

Clients' libraries put titles into `$id`, type names with brackets into `$defs`, and their language's types into
`format`. To JSON Schema a name is a URI reference and an unknown format an annotation (2020-12, 8.2 and 7.2.3); the
library that compiles grammars refuses both.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from nproxy.openai.jsonvalue import JSON

_DIALECTS = ("http://json-schema.org/", "https://json-schema.org/")
_URI = re.compile(r"(?:[A-Za-z0-9._~:/?#@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")
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
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


def without_annotations(schema: JSON) -> JSON:
    """The schema without identifiers that are no URIs and without unknown formats; its references are escaped."""
    if isinstance(schema, list):
        return [without_annotations(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, JSON] = {}
    for key, value in schema.items():
        if _is_annotation(key, value):
            continue
        if key in _VALUES:
            made[key] = value
        elif key in _BY_NAME and isinstance(value, dict):
            made[key] = {name: without_annotations(part) for name, part in value.items()}
        elif key == "$ref" and isinstance(value, str):
            made[key] = _escaped(value)
        else:
            made[key] = without_annotations(value)
    return made


def _is_annotation(key: str, value: JSON) -> bool:
    if not isinstance(value, str):
        return False
    match key:
        case "$schema":
            return not value.startswith(_DIALECTS)
        case "$id":
            return not _URI.fullmatch(value)
        case "format":
            return value not in _FORMATS
        case _:
            return False


def _escaped(reference: str) -> str:
    """A reference whose fragment may be read as a URI's: a `%` that begins no escape is a letter."""
    document, mark, fragment = reference.partition("#")
    fragment = re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", fragment)
    return document + mark + quote(fragment, safe=_IN_FRAGMENT)

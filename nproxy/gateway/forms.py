"""Finds the models that a form (multipart/form-data, RFC 7578) names, without parsing all of it."""

from __future__ import annotations

import re

_MODEL = re.compile(
    rb'content-disposition:[^\r\n]*;[ \t]*name="?model"?[ \t]*(?:;[^\r\n]*)?\r\n'
    rb"(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n",
    re.IGNORECASE,
)
_DISPOSITION = re.compile(rb"content-disposition[ \t]*:[^\r\n]*(?:\r?\n[ \t][^\r\n]*)*", re.IGNORECASE)
_PLAIN = re.compile(
    rb'content-disposition:[ \t]*form-data;[ \t]*name="([^"\\]*)"'
    rb'(?:;[ \t]*filename="[^"\\]*")?(?:;[ \t]*filename\*=[^;"\s]*)?[ \t]*',
    re.IGNORECASE,
)
_VALUE = re.compile(rb"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n--")


def model_of(form: bytes) -> str | None:
    """Return the first model that a form, or the beginning of one, names."""
    found = _MODEL.search(form)
    return None if found is None else _text(found[1])


def models_of(form: bytes) -> list[str]:
    """Return all models that any server could find in a complete form, also in text of a file that looks like a part.

    Servers differ in what they accept as a name (`name*=`, escapes, folded lines, capitals). Raises ValueError for
    parts that are not written the way browsers and the usual clients write them.
    """
    models = []
    for line in _DISPOSITION.finditer(form):
        name = _PLAIN.fullmatch(line[0])
        if name is None:
            raise ValueError("a part whose name may be read in several ways")
        if name[1].lower() == b"model":
            value = _VALUE.match(form, line.end())
            if value is None:
                raise ValueError("a model that is no short line")
            models.append(_text(value[1]))
    return models


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")

"""The models that a form names (multipart/form-data, RFC 7578), found without taking it apart."""

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
    """The first model that a form, or what there is of it, names."""
    found = _MODEL.search(form)
    return None if found is None else _text(found[1])


def models_of(form: bytes) -> list[str]:
    """All models that a whole form names, whoever reads it; what looks like a part within a file counts.

    Servers differ in what they take for a name (`name*=`, escapes, folded lines, capitals). Raises ValueError for what
    is not written as browsers and the usual clients write it.
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

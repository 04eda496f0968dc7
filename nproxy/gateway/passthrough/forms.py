"""Finds the models that a form (multipart/form-data, RFC 7578) names, without parsing all of it.

Nothing here takes longer than in proportion to the form, whatever a client has written into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = b"content-disposition"
_DISPOSITION = re.compile(rb"content-disposition[ \t]*:[^\r\n]*(?:\r?\n[ \t][^\r\n]*)*", re.IGNORECASE)
_PLAIN = re.compile(
    rb'content-disposition:[ \t]*form-data;[ \t]*name="([^"\\]*)"'
    rb'(?:;[ \t]*filename="[^"\\]*")?(?:;[ \t]*filename\*=[^;"\s]*)?[ \t]*',
    re.IGNORECASE,
)
_NAMES_A_MODEL = re.compile(rb';[ \t]*name="?model"?[ \t]*(?:;|\Z)', re.IGNORECASE)
_VALUE = re.compile(rb"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n")


@dataclass(frozen=True, slots=True)
class Named:
    """What a form, or the beginning of one, names as its model, and where it does so.

    place: None if it may be something else. A file may contain what looks like a part, but not the boundary between
    parts, which is the form's first line.
    """

    model: str | None = None
    place: slice | None = None


def named_in(form: bytes) -> Named:
    """Find the model in the first part that is called so."""
    line = next((line for line in _dispositions(form) if _NAMES_A_MODEL.search(line[0])), None)
    if line is None or (value := _VALUE.match(form, line.end())) is None:
        return Named()
    mark = form[: form.find(b"\r\n") + 2]
    begin = form.rfind(mark, 0, line.start()) + len(mark) - 2
    after = form[value.end() : value.end() + len(mark) - 2]  # less at the end of what has come
    apart = mark.startswith(b"--") and mark.startswith(after) and b"\r\n\r\n" not in form[begin : line.start()]
    return Named(_text(value), slice(*value.span(1)) if apart else None)


def models_of(form: bytes) -> list[str]:
    """Return all models that any server could find in a complete form, also in text of a file that looks like a part.

    Servers differ in what they accept as a name (`name*=`, escapes, folded lines, capitals). Raises ValueError for
    parts that are not written the way browsers and the usual clients write them.
    """
    models = []
    end = 0  # of what has been taken for a value
    for line in _dispositions(form):
        name = _PLAIN.fullmatch(line[0])
        if name is None or line.start() < end:
            raise ValueError("a part whose name may be read in several ways")
        if name[1].lower() == b"model":
            value = _VALUE.match(form, line.end())
            if value is None or not form.startswith(b"--", value.end()):
                raise ValueError("a model that is no short line")
            models.append(_text(value))
            end = value.end()
    return models


def _dispositions(form: bytes) -> Iterator[re.Match[bytes]]:
    """Find the header lines of parts. `find` is twenty times as fast as a pattern that ignores case."""
    lower = form.lower()
    at = lower.find(_HEADER)
    while at >= 0:
        line = _DISPOSITION.match(form, at)
        if line is not None:
            yield line
        at = lower.find(_HEADER, at + len(_HEADER) if line is None else line.end())


def _text(value: re.Match[bytes]) -> str:
    return value[1].decode("utf-8", "replace")

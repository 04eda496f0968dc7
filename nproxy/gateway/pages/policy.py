"""The headers that limit what a browser may do with each page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Page = Literal["playground", "docs"]
"""The name of a folder beside this file, and of the setting that enables it."""

_OWN_FILES = (
    "default-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)
"""Scripts and styles must be separate files, and a page may only connect to the gateway that it came from."""

_NO_MARKUP = "require-trusted-types-for 'script'; trusted-types 'none'"
"""Text never becomes markup or a script: a browser that supports trusted types throws an error instead."""

CONTENT: Mapping[Page, str] = {"playground": f"{_OWN_FILES}; {_NO_MARKUP}", "docs": _OWN_FILES}
"""The content security policy of each page. Swagger UI renders descriptions as markup, so its page must allow that."""


def headers_of(page: Page) -> Mapping[str, str]:
    """Return the headers of every file of a page."""
    return {"Content-Security-Policy": CONTENT[page], "Referrer-Policy": "no-referrer"}

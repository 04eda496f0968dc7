"""What a browser may do with each page, as headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Page = Literal["playground", "docs"]
"""A folder beside this file, and the setting that switches it on."""

_OWN_FILES = (
    "default-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)
"""Scripts and styles are files of their own, and a page talks to the gateway that it came from."""

_NO_MARKUP = "require-trusted-types-for 'script'; trusted-types 'none'"
"""No text becomes markup or a script: a browser that knows trusted types throws where one would."""

CONTENT: Mapping[Page, str] = {"playground": f"{_OWN_FILES}; {_NO_MARKUP}", "docs": _OWN_FILES}
"""The content security policy of each. Swagger UI makes markup of descriptions, so that its page has to let it."""


def headers_of(page: Page) -> Mapping[str, str]:
    """What goes with every file of a page."""
    return {"Content-Security-Policy": CONTENT[page], "Referrer-Policy": "no-referrer"}

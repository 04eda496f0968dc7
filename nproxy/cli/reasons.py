"""Why a server gave no answer, in a few words, whichever library asked it."""

from __future__ import annotations

import errno
import os
import ssl

from nproxy.cli.printable import printable

NOT_HTTP = "its answer is not HTTP that can be read"
ENDED_EARLY = "the connection ended before the answer"


def reason(error: BaseException) -> str:
    """The innermost cause's own words, as the outer ones repeat them less clearly; the system's where it has some."""
    while isinstance(inner := error.__cause__ or error.__context__, Exception):
        error = inner
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {(error.reason or 'it broke off').replace('_', ' ').lower()}"
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        return os.strerror(error.errno or 0).lower()
    return printable(str(getattr(error, "strerror", None) or error or type(error).__name__)).lower()

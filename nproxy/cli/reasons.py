"""Short texts that say why a server gave no answer, for any HTTP library."""

from __future__ import annotations

import errno
import os
import ssl

from nproxy.cli.printable import printable

NOT_HTTP = "its answer is not valid HTTP"
ENDED_EARLY = "the connection ended before the answer"


def reason(error: BaseException) -> str:
    """Return the message of the innermost cause, since the outer ones repeat it less clearly.

    If the system has a message for the error number, that one is used.
    """
    while isinstance(inner := error.__cause__ or error.__context__, Exception):
        error = inner
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its TLS certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS handshake failed: {(error.reason or 'the connection was closed').replace('_', ' ').lower()}"
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        return os.strerror(error.errno or 0).lower()
    return printable(str(getattr(error, "strerror", None) or error) or type(error).__name__).lower()

"""Reads when a certificate expires, so that operators can be warned in time.

Python's `ssl` reports this only for a peer's certificate after a handshake. So the field is read from the DER encoding
here (RFC 5280, 4.1): `Certificate` is a sequence whose first part is `tbsCertificate`, in which `validity` follows an
optional version, the serial number, an algorithm and the issuer.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION = 0xA0
_UTC_TIME = 0x17


def certificate_expiry(chain: str) -> float | None:
    """Return the earliest expiry of the certificates in a PEM file, in Unix time; None if it has none.

    chain: the file's text. A TLS library has accepted its certificates before.
    """
    return min(map(_not_after, map(ssl.PEM_cert_to_DER_cert, _PEM.findall(chain))), default=None)


def _not_after(certificate: bytes) -> float:
    ((_, whole),) = _parts(certificate)
    _, to_be_signed = next(_parts(whole))
    fields = [value for tag, value in _parts(to_be_signed) if tag != _VERSION]
    _, (tag, text) = _parts(fields[3])
    written = text.decode("ascii")
    if tag == _UTC_TIME:  # a two-digit year, for 1950 to 2049
        written = ("19" if written >= "50" else "20") + written
    return datetime.strptime(written, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _parts(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each DER value."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length >= 0x80:  # the low bits say how many bytes hold the length
            size = length - 0x80
            length, at = int.from_bytes(der[at : at + size]), at + size
        yield tag, der[at : at + length]
        at += length

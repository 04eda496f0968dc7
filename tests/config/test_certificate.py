"""When a chain of certificates ends, by certificates that others have made."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import trustme

from nproxy.config import certificate_expiry


def chain(*ends: datetime) -> str:
    """A PEM file of as many certificates."""
    authority = trustme.CA()
    leaves = (
        authority.issue_cert("127.0.0.1", not_before=datetime(2020, 1, 1, tzinfo=UTC), not_after=end) for end in ends
    )
    return "".join(leaf.cert_chain_pems[0].bytes().decode() for leaf in leaves)


SOON, LATER = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC), datetime(2033, 1, 1, tzinfo=UTC)
FAR = datetime(2077, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ends", "first"), [([SOON], SOON), ([LATER, SOON], SOON), ([FAR], FAR)], ids=["one", "a chain", "four digits"]
)
def test_the_first_one_that_ends(ends: list[datetime], first: datetime) -> None:
    assert certificate_expiry(chain(*ends)) == first.timestamp()


def test_words_around_it_are_passed_over() -> None:
    assert certificate_expiry("subject=CN = x\n" + chain(SOON) + "-----BEGIN PRIVATE KEY-----\n") == SOON.timestamp()
    assert certificate_expiry("no certificate") is None

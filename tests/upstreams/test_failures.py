"""Errors of HTTP and of the system as Failures: what follows from them, and what a client is told."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from nproxy.choices.events import FailureKind
from nproxy.choices.failure_table import Follows, follows
from nproxy.upstreams.failures import before_the_head, given_up
from nproxy.upstreams.http.errors import ConnectError, DisconnectedError, HTTPError, LostError

EXPIRED = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed (_ssl.c:1006)")
EXPIRED.verify_message = "Certificate has expired"
HANDSHAKE = ssl.SSLError(1, "[SSL: TLSV1_ALERT_HANDSHAKE_FAILURE] tlsv1 alert handshake failure (_ssl.c:1006)")
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.1', 80)")
HANDSHAKE.reason = "TLSV1_ALERT_HANDSHAKE_FAILURE"


def test_a_call_that_has_spoken_when_its_replica_is_found_down_is_resumed_and_another_one_made_anew() -> None:
    """Nothing of the other's answer was lost, so that it needs no `resume`."""
    spoken, silent = given_up("a", spoken=True), given_up("a", spoken=False)
    assert (spoken.kind, silent.kind) == (FailureKind.CUT, FailureKind.DOWN)
    assert follows(spoken, Follows.RESUMES) and not follows(spoken, Follows.UNSERVED)
    assert follows(silent, Follows.UNSERVED) and not follows(silent, Follows.RESUMES)


@pytest.mark.parametrize(
    ("why", "cause", "words"),
    [
        ("tls", EXPIRED, "certificate has expired"),
        ("tls", HANDSHAKE, "tlsv1 alert handshake failure"),
        ("name", socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "name or service not known"),
        ("refused", REFUSED, "connection refused"),
        ("refused", None, ""),
    ],
)
def test_the_log_gets_the_systems_words_without_an_address(why: str, cause: OSError | None, words: str) -> None:
    failure = before_the_head(ConnectError(why, cause), stale=False, upstream="a")  # type: ignore[arg-type]
    assert (failure.kind, failure.cause) == (FailureKind.CONNECT, words)


@pytest.mark.parametrize(("error", "word"), [(DisconnectedError(), "was closed"), (LostError(), "broke")])
def test_a_close_is_no_break(error: HTTPError, word: str) -> None:
    told = before_the_head(error, stale=False, upstream="a")
    assert told.kind is FailureKind.RESET
    assert told.message == f"The connection to the upstream 'a' {word} before an answer came."

"""What admission clients and ledgers say to each other: each reads what the other may say, and nothing else."""

from __future__ import annotations

import pytest

from nproxy.gateway.admission.messages import (
    Admitted,
    Answer,
    Ask,
    Leave,
    Level,
    Message,
    Move,
    Refused,
    Returned,
    RoomAgain,
    answer_of,
    message_of,
    to_bytes,
)
from nproxy.gateway.callers import Rates

LEVELS = (Level("tokens", 10**30, 1.5), Level("requests", 600, 0.0))
MESSAGES: list[Message] = [
    Ask("w1-1", "ann", "u", 8, 4000, 0.5, None, Rates(requests=600, tokens=10**30), waits=False),
    Ask("w1-2", "\u4f60", "u", 1),
    Move("w1-1", "v"),
    Leave("w1-1"),
    Leave("w1-1", 2**70),
]
ANSWERS: list[Answer] = [
    Admitted("w1-1", LEVELS),
    Refused("w1-1", "queue_full", 2.5, full=True, levels=LEVELS),
    RoomAgain(),
    Returned("ann", LEVELS),
]


def test_all_arrive() -> None:
    assert [message_of(to_bytes(message)) for message in MESSAGES] == MESSAGES
    assert [answer_of(to_bytes(answer)) for answer in ANSWERS] == ANSWERS


@pytest.mark.parametrize(
    "data",
    [*map(to_bytes, ANSWERS), b"", b"[", b"[]", b"{}", b'["ask","w1-1","ann","u","8"]', b'["leave"]', b'["\xff"]'],
)
def test_a_ledger_takes_nothing_else(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^no message of admission control$"):
        message_of(data)


@pytest.mark.parametrize("data", [*map(to_bytes, MESSAGES), b"", b'["admitted"]', b'["refused","w1-1","no"]'])
def test_a_client_takes_nothing_else(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^no message of admission control$"):
        answer_of(data)

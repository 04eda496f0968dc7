"""A key that is typed."""

from __future__ import annotations

from nproxy.config import digest_of
from tests.fakes.terminal import CONTROL_C, nproxy, terminal

KEY = "a-key-of-its-own-long-enough"


async def test_a_terminal_asks_for_a_key_and_does_not_show_it() -> None:
    async with terminal(*nproxy("keys", "hash")) as screen:
        await screen.until("Key: ")
        screen.type(f"{KEY}\n")
        assert await screen.ended() == 0
        await screen.until(f"sha256:{digest_of(KEY).hex()}")
        assert KEY not in screen.text


async def test_ctrl_c_ends_the_question() -> None:
    async with terminal(*nproxy("keys", "hash")) as screen:
        await screen.until("Key: ")
        screen.type(CONTROL_C)
        assert await screen.ended() != 0
        assert "Traceback" not in screen.text

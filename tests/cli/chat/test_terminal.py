"""`nproxy chat` at a real terminal, in front of real servers on loopback."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.behaviour import said
from tests.fakes.terminal import CONTROL_C, CONTROL_D, Terminal, nproxy, terminal
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream

UP = "\x1b[A"


def chat(upstream: FakeUpstream, *words: str) -> tuple[str, ...]:
    return nproxy("chat", "--url", upstream.url, *words)


def on_one_line(*pieces: str) -> Callable[[str], bool]:
    """Whether a line of the screen holds all of these."""
    return lambda text: any(all(piece in line for piece in pieces) for line in text.splitlines())


def asked(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


@pytest.fixture(autouse=True)
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where chats of a test remember their lines."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "nproxy" / "chat_history"


async def enter(screen: Terminal, line: str, *, then: str = "> ") -> str:
    """Type a line at the prompt; gives what came until the next one. Keys that come before it may be lost."""
    before = len(await prompted(screen))
    screen.type(f"{line}\n")
    return (await screen.until(lambda text: "\n" in text[before:] and text.endswith(f"\n{then}")))[before:]


async def prompted(screen: Terminal) -> str:
    """Wait for the prompt."""
    return await screen.until(lambda text: text.endswith(("> ", "\n. ")))


async def interrupt(screen: Terminal) -> None:
    """Press Ctrl-C at the prompt until there is another one.

    CPython's readline looks at signals when one interrupts its wait for keys: one that comes between the echo of the
    last key and that wait is seen with the next key, or the next signal.
    """
    before = len(screen.text)
    for _ in range(20):
        screen.type(CONTROL_C)
        with suppress(AssertionError):
            await screen.until(lambda text: text[before:].endswith("\n> "), 3)
            return
    await prompted(screen)


async def leave(screen: Terminal) -> None:
    await prompted(screen)
    screen.type(CONTROL_D)
    assert await screen.ended() == 0


async def test_answers_stand_side_by_side_while_they_grow() -> None:
    growing = Behaviour(n="native", hold_after=6)
    async with FakeUpstream(growing) as upstream, terminal(*chat(upstream, "-n", "3", "--seed", "1", "hi")) as screen:
        await screen.until(on_one_line("seed 1", "seed 2", "seed 3"))
        assert "stop, " not in screen.text
        growing.go_on.set()
        assert await screen.ended() == 0
        await screen.until(on_one_line(said(1), said(2), said(3)))
        await screen.until(on_one_line("stop, 4 tokens", "stop, 4 tokens"))
        (call,) = upstream.calls
    assert {name: call.body[name] for name in ("model", "n", "seed")} == {"model": MODEL, "n": 3, "seed": 1}
    assert call.body["messages"] == [asked("hi")]


async def test_a_narrow_terminal_stacks_them() -> None:
    async with FakeUpstream(Behaviour(n="native")) as upstream:
        words = ("-n", "2", "--seed", "1", "hi")
        async with terminal(*chat(upstream, *words), columns=50) as screen:
            assert await screen.ended() == 0
            text = await screen.until(lambda text: "│ " + said(2) in text)
    assert not on_one_line(said(1), said(2))(text)
    assert text.rindex(said(1)) < text.rindex(said(2))


async def test_more_rows_than_fit_are_shown_by_turns_and_all_of_them_at_the_end() -> None:
    growing = Behaviour(n="native", hold_after=40)  # heads, and a piece or two of each
    async with FakeUpstream(growing) as upstream:
        words = ("-n", "16", "--seed", "100", "hi")
        async with terminal(*chat(upstream, *words), columns=50, lines=16) as screen:
            await screen.until("choices 0 to 1 of 16; 0 of 16 ended")
            assert "seed 102" not in screen.text
            growing.go_on.set()
            assert await screen.ended() == 0
            await screen.until(lambda text: all(said(seed) in text for seed in range(100, 116)))


async def test_what_would_act_on_the_terminal_is_left_out() -> None:
    evil = Behaviour(pieces=lambda seed: ["be\x1b[2Jfore\x07", "\x9b31m after"])
    async with FakeUpstream(evil) as upstream, terminal(*chat(upstream, "-n", "1", "hi")) as screen:
        assert await screen.ended() == 0
        await screen.until("be[2Jfore31m after")
        assert b"\x1b[2J" not in screen.raw
        assert b"\x07" not in screen.raw


async def test_a_name_of_a_model_does_not_act_on_the_terminal_either() -> None:
    async with FakeUpstream(models=["be\x1b[2Jfore\u202e"]) as upstream, terminal(*chat(upstream)) as screen:
        await screen.until("be [2Jfore at http")
        assert b"\x1b[2J" not in screen.raw
        await leave(screen)


async def test_thoughts_stand_before_the_answer() -> None:
    thinking = Behaviour(pieces=lambda seed: [{"reasoning_content": "hm, "}, {"reasoning_content": "well"}, "Yes."])
    async with FakeUpstream(thinking) as upstream, terminal(*chat(upstream, "-n", "1", "hi")) as screen:
        assert await screen.ended() == 0
        text = await screen.until("Yes.")
    assert text.rindex("hm, well") < text.rindex("Yes.")


async def test_the_answer_that_is_picked_goes_on() -> None:
    async with FakeUpstream(Behaviour(n="native")) as upstream:
        async with terminal(*chat(upstream, "-n", "3", "--seed", "1", "--system", "Be brief.")) as screen:
            await enter(screen, "one")
            await enter(screen, "two")
            assert "continuing from answer 2" in await enter(screen, "/pick 2")
            await enter(screen, "three")
            await leave(screen)
        first, second, third = [call.body["messages"] for call in upstream.calls]
    assert first == [asked("Be brief.", "system"), asked("one")]
    assert second == [*first, asked(said(1), "assistant"), asked("two")]
    assert third == [*second, asked(said(3), "assistant"), asked("three")]


async def test_words_behind_a_slash_change_what_is_asked() -> None:
    async with FakeUpstream(Behaviour(n="native")) as upstream, terminal(*chat(upstream, "--seed", "1")) as screen:
        await enter(screen, "one")
        for line in ("/n 2", "/seed off", "/temperature 0.5", "/max-tokens 7", "/system Be brief.", "/mo\tother"):
            await enter(screen, line)  # the tab key completes
        await enter(screen, "/retry")
        assert "there is no /frob; /help lists the commands" in await enter(screen, "/frob")
        assert "a whole number is expected, from 1 to 512" in await enter(screen, "/n 0")
        assert "/retry" in await enter(screen, "/help")
        await enter(screen, "//etc is \\", then=". ")
        await enter(screen, "a folder")
        assert "this command takes no argument" in await enter(screen, "/quit now")
        screen.type("/quit\n")
        assert await screen.ended() == 0
        once, again, last = [call.body for call in upstream.calls]
    assert (once["n"], once["seed"]) == (4, 1)
    changed = {"model": "other", "n": 2, "temperature": 0.5, "max_tokens": 7}
    assert {name: again.get(name) for name in (*changed, "seed")} == {**changed, "seed": None}
    assert again["messages"] == [asked("Be brief.", "system"), asked("one")]
    assert last["messages"][-1] == asked("/etc is \na folder")


async def test_control_c_stops_the_answer_and_not_the_program() -> None:
    async with FakeUpstream(Behaviour(n="native", hold_after=5)) as upstream:
        async with terminal(*chat(upstream, "-n", "2", "--seed", "1")) as screen:
            await prompted(screen)
            screen.type("one\n")
            await screen.until(on_one_line("seed 1", "seed 2"))
            screen.type(CONTROL_C)
            await screen.until(on_one_line("stopped, ~", "stopped, ~"))
            await upstream.until(lambda: not upstream.open_calls, 60)
            upstream.behaviour.hold_after = None
            await enter(screen, "two")
            await prompted(screen)
            screen.type("not this")
            await screen.until("> not this")
            await interrupt(screen)  # at the prompt it takes the line back
            await enter(screen, "/clear")
            await leave(screen)
        cut, whole = upstream.calls
    assert cut.cancelled
    assert whole.body["messages"][0] == asked("one")
    assert said(1).startswith(whole.body["messages"][1]["content"])


async def test_what_fails_is_told_and_the_conversation_goes_on() -> None:
    async with FakeUpstream(Behaviour(n="native")) as upstream, terminal(*chat(upstream)) as screen:
        await prompted(screen)
        upstream.script(Behaviour(status=429, body=b'{"error": {"message": "too many of them"}}'))
        assert "answered 429: too many of them" in await enter(screen, "one")
        upstream.script(Behaviour(n="ignore"))
        assert "the server sent 1 of 4 choices; nproxy gives it n" in await enter(screen, "/retry")
        assert "stop, 4 tokens" in await enter(screen, "two")
        await leave(screen)
        assert [len(call.body["messages"]) for call in upstream.calls] == [1, 1, 3]


async def test_a_line_that_is_not_utf8_is_not_sent() -> None:
    async with FakeUpstream(Behaviour(n="native")) as upstream, terminal(*chat(upstream)) as screen:
        assert "the line is not valid UTF-8" in await enter(screen, "a \udcff byte")
        assert "the line is not valid UTF-8" in await enter(screen, "/system \udcff")
        await enter(screen, "one")
        await leave(screen)
        assert [call.body["messages"] for call in upstream.calls] == [[asked("one")]]


async def test_lines_are_remembered_for_this_user_alone(history: Path) -> None:
    async with FakeUpstream() as upstream:
        for line in ("remember me", UP):
            async with terminal(*chat(upstream, "-n", "1")) as screen:
                await enter(screen, line)
                await leave(screen)
        assert [call.body["messages"] for call in upstream.calls] == [[asked("remember me")]] * 2
    assert history.stat().st_mode & 0o777 == 0o600

"""`nproxy chat` at a real terminal, in front of real servers on loopback."""

from __future__ import annotations

from tests.fakes.behaviour import said
from tests.fakes.terminal import nproxy, terminal
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream


def side_by_side(*pieces: str) -> object:
    """Whether a line of the screen holds all of these."""
    return lambda text: any(all(piece in line for piece in pieces) for line in text.splitlines())


def chat(upstream: FakeUpstream, *words: str) -> tuple[str, ...]:
    return nproxy("chat", "--url", upstream.url, *words)


async def test_answers_stand_side_by_side_while_they_grow() -> None:
    growing = Behaviour(n="native", hold_after=6)
    async with FakeUpstream(growing) as upstream, terminal(*chat(upstream, "-n", "3", "--seed", "1", "hi")) as screen:
        await screen.until(side_by_side("seed 1", "seed 2", "seed 3"))
        assert "stop, " not in screen.text
        growing.go_on.set()
        assert await screen.ended() == 0
        await screen.until(side_by_side(said(1), said(2), said(3)))
        await screen.until(side_by_side("stop, 4 tokens"))
        (call,) = upstream.calls
    assert {name: call.body[name] for name in ("model", "n", "seed")} == {"model": MODEL, "n": 3, "seed": 1}
    assert call.body["messages"] == [{"role": "user", "content": "hi"}]

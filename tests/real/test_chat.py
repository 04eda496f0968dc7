"""`nproxy chat` at a real terminal, in front of the engine with the default model and of fan-out before it."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.fakes.terminal import CONTROL_D, nproxy, terminal
from tests.real.processes import Server

pytestmark = pytest.mark.model

ASK = ("-n", "4", "--seed", "3", "--max-tokens", "12", "Name a color.")

ENDS = re.compile(r"length, (12|~1[0-4]) tokens")
"""Twelve tokens each: where a busy server sends some of them together, they are counted by their share of all 48."""


async def test_four_answers_stand_side_by_side(road: Server) -> None:
    words = nproxy("chat", "--url", road.v1, *ASK, "--json")
    answers = [choice["content"] for choice in json.loads(subprocess.check_output(words, timeout=100))["choices"]]
    assert len(set(answers)) > 1
    async with terminal(*nproxy("chat", "--url", road.v1, *ASK), columns=300) as screen:
        assert await screen.ended() == 0
        shown = [" ".join(answer.split())[:20] for answer in answers]
        await screen.until(lambda text: any(all(start in line for start in shown) for line in text.splitlines()))
        await screen.until(lambda text: any(len(ENDS.findall(line)) == 4 for line in text.splitlines()))


async def test_a_conversation_goes_on(engine_road: Server) -> None:
    settings = ("-n", "2", "--seed", "3", "--max-tokens", "8")
    async with terminal(*nproxy("chat", "--url", engine_road.v1, *settings), XDG_STATE_HOME="/nowhere") as screen:
        for line in ("Name a color.", "/pick 1", "And another."):
            before = len(await screen.until(lambda text: text.endswith("\n> ")))
            screen.type(f"{line}\n")
            await screen.until(lambda text, before=before: "\n" in text[before:] and text.endswith("\n> "))  # type: ignore[misc]
        assert "continuing from answer 1" in screen.text
        screen.type(CONTROL_D)
        assert await screen.ended() == 0

"""One case again where the machine had other things to do, and never where something went wrong."""

from __future__ import annotations

from itertools import count as count_from

import pytest

from bench.gateway import measuring
from bench.gateway.cases import CASES
from bench.gateway.figures import Round
from bench.gateway.measuring import quietly
from bench.gateway.peers import Running
from bench.gateway.programs import Count
from bench.steal import TRIES

GOOD = Round(rate=10.0, cpu_us=5.0, first_ms=1.0, last_first_ms=2.0, gateway_busy=0.9, load_busy=0.3, done=20)
BAD = Round(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, {"cut": 1}, "it was cut")


@pytest.mark.parametrize(("rounds", "kept", "played"), [([GOOD] * TRIES, GOOD, TRIES), ([BAD, GOOD, GOOD], BAD, 1)])
def test_a_wrong_answer_counts_on_any_machine(
    monkeypatch: pytest.MonkeyPatch, rounds: list[Round], kept: Round, played: int
) -> None:
    count = 0

    def play(*_: object) -> Round:
        nonlocal count
        count += 1
        return rounds[count - 1]

    monkeypatch.setattr(measuring, "play", play)
    accounts = count_from(0, 1e9)  # more seconds, each time, than any measurement took
    found = quietly(next(iter(CASES.values())), Running(1, None), [], 1.0, lambda: next(accounts))
    assert (found.rate, found.errors, count) == (kept.rate, kept.errors, played)
    assert found.stolen > 1


def test_whole_answers_count_by_their_choices_and_streams_by_their_chunks() -> None:
    count = Count(answers=3, chunks=384)
    assert measuring._counted(CASES["n8-whole"], count) == 24
    assert measuring._counted(CASES["n8-whole"].unmerged(), count) == 3
    assert measuring._counted(CASES["n8-burst"], count) == 384

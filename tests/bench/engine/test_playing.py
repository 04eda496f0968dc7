"""Who is asked what, how often, and no more."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from bench.engine.cells import Answer, Asked, Cell, WrongAnswer
from bench.engine.peers import Peer, Running
from bench.engine.playing import Questions, ask, play, turned, why
from bench.engine.record import Row
from tests.compatibility.installing import Unavailable

QUESTIONS = Questions(lambda text: [hash(word) for word in text.split()], 8)
NARROW, WIDE, APART, OTHER = Cell(7, 1), Cell(7, 4), Cell(7, 4, apart=True), Cell(9, 1)


def quickly(asked: Asked) -> Answer:
    return Answer(1.0, 0.1, 0.1, asked.tokens)


def slowly(asked: Asked) -> Answer:
    return Answer(31.0, 0.1, 0.1, asked.tokens)


def test_choices_have_one_prompt_and_requests_have_their_own() -> None:
    together, apart = QUESTIONS.of(WIDE, 3), QUESTIONS.of(APART, 3)
    assert (len(together.prompts), together.n) == (1, 4)
    assert (len(apart.prompts), apart.n, len({prompt[0] for prompt in apart.prompts})) == (4, 1, 4)
    assert together.tokens == apart.tokens == 32
    assert QUESTIONS.of(WIDE, 4).prompts != together.prompts


def test_a_slow_cell_is_kept_and_neither_it_nor_a_wider_one_is_asked_again() -> None:
    row = Row(False)
    for _ in range(2):
        for cell in (NARROW, WIDE, APART):
            ask(slowly, row, cell, [QUESTIONS.of(cell, 1)], 30.0)
        ask(quickly, row, OTHER, [QUESTIONS.of(OTHER, 1)], 30.0)
    assert [len(seen.answers) for seen in row.cells.values()] == [1, 0, 0, 2]
    assert row.cells[NARROW].seconds == 31.0
    assert row.cells[WIDE].wrong == row.cells[APART].wrong == "not asked: 7 tokens, n=1 took longer than 30 s"


def test_a_wrong_answer_ends_its_cell() -> None:
    def short(asked: Asked) -> Answer:
        return Answer(1.0, 0.1, 0.1, asked.tokens - 1)

    row = Row(False)
    for how in (short, quickly):
        ask(how, row, WIDE, [QUESTIONS.of(WIDE, 1)], 30.0)
    assert (row.cells[WIDE].answers, row.cells[WIDE].wrong) == ([], "31 tokens came, not 32")


@pytest.mark.parametrize(
    ("taken", "times", "kept"), [([0, 0], 1, 1.0), ([0, 9, 9, 9], 2, 2.0), ([0, 9e9, 0, 9, 0, 9e9], 3, 2.0)]
)
def test_what_others_took_from_the_machine_is_asked_again(taken: list[float], times: int, kept: float) -> None:
    """With other prompts, as some peers know the same one by now; of the disturbed ones the least is kept."""
    came: list[Asked] = []

    def how(asked: Asked) -> Answer:
        came.append(asked)
        return Answer(float(len(came)), 0.1, 0.1, asked.tokens)

    row, asked = Row(False), [QUESTIONS.of(WIDE, number) for number in range(3)]
    ask(how, row, WIDE, asked, 30.0, partial(next, iter(taken)))
    assert came == asked[:times]
    assert [answer.seconds for answer in row.cells[WIDE].answers] == [kept]
    assert len({one.prompts for one in asked}) == 3


def test_peers_take_turns_in_beginning() -> None:
    assert [turned(["a", "b", "c"], number) for number in (0, 1, 5)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
    ]
    assert turned([], 2) == []


def test_all_are_asked_the_same_in_turns_and_who_cannot_be_had_keeps_a_row() -> None:
    heard: list[tuple[str, Asked]] = []
    standing: list[set[str]] = []
    started: dict[str, psutil.Process] = {}

    @contextmanager
    def start(logs: Path, name: str) -> Iterator[Running]:
        def hear(asked: Asked) -> Answer:
            heard.append((name, asked))
            standing.append({one for one, it in started.items() if it.status() == psutil.STATUS_STOPPED})
            return quickly(asked)

        if name == "none":
            raise Unavailable("there is no compiler")
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            started[name] = psutil.Process(child.pid)
            yield Running(hear, child.pid, {"it": "1"}, "how")
            going = {it.status() != psutil.STATUS_STOPPED for it in started.values() if it.is_running()}
            assert going == {True}, "nobody could be told to end"
            child.communicate(b"\n")

    peers = {name: Peer(partial(start, name=name), name == "ours") for name in ("ours", "none", "other")}
    rows = play(peers, QUESTIONS, [NARROW, WIDE], 2, 30.0)
    assert rows["none"].missing == "there is no compiler"
    assert [name for name, _ in heard] == ["ours", "other", *["ours", "other"] * 2, *["other", "ours"] * 2]
    assert standing == [set(), set(), *[{"other"}, {"ours"}] * 2, *[{"ours"}, {"other"}] * 2]
    rounds = [asked for _, asked in heard[2:]]
    assert rounds[0::2] == rounds[1::2], "two peers were asked differently"
    assert len(set(rounds)) == 4, "a cache of the round before would help"
    assert rows["ours"].ours
    assert rows["other"].peak_mib > 0
    assert [len(seen.answers) for seen in rows["other"].cells.values()] == [2, 2]


def test_a_peer_that_answers_wrongly_when_warmed_up_is_not_asked() -> None:
    @contextmanager
    def start(logs: Path) -> Iterator[Running]:
        def broken(asked: Asked) -> Answer:
            raise WrongAnswer("status 400: no n here")

        yield Running(broken, 1, {}, "how")

    assert play({"it": Peer(start)}, QUESTIONS, [NARROW], 1, 30.0)["it"].missing == "status 400: no n here"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("ended with 1\nstarting\nOSError: no room\n  at exit\n", "ended with 1: OSError: no room"),
        ("ended with 2\nusage: it\nwhat is this?", "ended with 2: what is this?"),
        ("pip cannot", "pip cannot"),
        ("", "it said nothing"),
    ],
)
def test_why_it_did_not_start_is_a_line(message: str, reason: str) -> None:
    assert why(message) == reason

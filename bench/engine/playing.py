"""Starts the peers and asks them in turns."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.engine.cells import Answer, Asked, Cell, WrongAnswer, check
from bench.engine.memory import peak_mib
from bench.engine.peers import Peer, Running
from bench.engine.prompts import WORDS, prompt
from bench.engine.record import Row, Rows, Seen
from bench.engine.stopped import stopped
from bench.steal import TRIES, stolen, undisturbed
from tests.compatibility.installing import Unavailable

_WARM_N = 4
_HOPELESS = 1.5  # times the patience: an answer this slow is not tried again because of stolen time
_WHY_LENGTH = 240


@dataclass(frozen=True, slots=True)
class Questions:
    """Turns cells into prompts. encode: the model's tokenizer. new: tokens of each choice."""

    encode: Callable[[str], Sequence[int]]
    new: int

    def of(self, cell: Cell, number: int) -> Asked:
        """Return the cell's prompts. Prompts of another `number` begin differently, or differ after a few words."""
        count, n = (cell.n, 1) if cell.apart else (1, cell.n)
        first = number * len(WORDS)
        return Asked(tuple([prompt(self.encode, cell.prompt, first + which) for which in range(count)]), n, self.new)


def play(peers: Mapping[str, Peer], questions: Questions, grid: Sequence[Cell], rounds: int, patience: float) -> Rows:
    """Start and warm up all peers, and ask all of them all cells, once per round; each round begins with another peer.

    The peers stay loaded until the end, so that every round sees the same servers; while one is asked, the others are
    stopped. patience: seconds, see `ask`.
    """
    rows: Rows = {name: Row(peer.ours) for name, peer in peers.items()}
    warm = questions.of(Cell(min(cell.prompt for cell in grid), _WARM_N), 0)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running: dict[str, Running] = {}
        for name, peer in peers.items():
            say(f"starting {name}")
            try:
                started = stack.enter_context(peer.start(logs))
                check(warm, started.ask(warm))
            except (Unavailable, RuntimeError, WrongAnswer) as error:
                rows[name].missing = why(str(error))
                say(f"  {rows[name].missing}")
                continue
            running[name] = started
            rows[name].versions, rows[name].how = dict(started.versions), started.how
        for number in range(rounds):
            for which, cell in enumerate(grid):
                first = 1 + number * len(grid) + which
                asked = [questions.of(cell, first + again * rounds * len(grid)) for again in range(TRIES)]
                for name in turned(list(running), number):
                    with stopped([other.pid for other in running.values() if other is not running[name]]):
                        ask(running[name].ask, rows[name], cell, asked, patience)
                    say(f"round {number}, {cell.name}, {name}: {_told(rows[name].cells[cell])}")
        for name, started in running.items():
            rows[name].peak_mib = peak_mib(started.pid)
    return rows


def ask(
    how: Callable[[Asked], Answer],
    row: Row,
    cell: Cell,
    asked: Sequence[Asked],
    patience: float,
    stolen: Callable[[], float] = stolen,
) -> None:
    """Ask once and keep the answer; ask again with the next of `asked` if time was stolen from the machine meanwhile.

    A cell that went wrong or took longer than `patience` is not asked again, nor are wider cells of its prompt.
    stolen: returns the seconds, so far, for which the hypervisor withheld this virtual machine's processors.
    """
    seen = row.cells.setdefault(cell, Seen())
    if seen.wrong or any(answer.seconds > patience for answer in seen.answers):
        return
    if narrower := _too_slow(row, cell, patience):
        seen.wrong = f"not asked: {narrower.name} took longer than {patience:g} s"
        return
    try:
        tries = [partial(_checked, how, one) for one in asked]
        answer, _ = undisturbed(tries, stolen, lambda answer: answer.seconds > _HOPELESS * patience)
    except WrongAnswer as wrong:
        seen.wrong = why(str(wrong))
    else:
        seen.answers.append(answer)


def _checked(how: Callable[[Asked], Answer], asked: Asked) -> Answer:
    answer = how(asked)
    check(asked, answer)
    return answer


def turned(names: Sequence[str], number: int) -> list[str]:
    """Return the names in their order, rotated so that each round begins with another one."""
    at = number % len(names) if names else 0
    return [*names[at:], *names[:at]]


def why(message: str) -> str:
    """Return the first line of a server's or library's message, and with it the last later line that names an error.

    If no later line does, the last line stands in for it.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["it said nothing"]
    reason = next((line for line in reversed(lines[1:]) if "error" in line.lower()), "".join(lines[1:][-1:]))
    return ": ".join(part for part in (lines[0], reason) if part)[:_WHY_LENGTH]


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


def _too_slow(row: Row, cell: Cell, patience: float) -> Cell | None:
    def slow(answers: Iterable[Answer]) -> bool:
        return any(answer.seconds > patience for answer in answers)

    narrower = [one for one in row.cells if one.prompt == cell.prompt and not one.apart]
    narrower = [one for one in narrower if one.n < cell.n or (cell.apart and one.n == cell.n)]
    return next((one for one in narrower if slow(row.cells[one].answers)), None)


def _told(seen: Seen) -> str:
    return seen.wrong or f"{seen.answers[-1].seconds:.2f} s"

"""What others took from the machine."""

from functools import partial
from types import SimpleNamespace

import psutil
import pytest

from bench.steal import SHARE, TRIES, stolen, undisturbed

ALL = 1e9  # seconds, more than any measurement took


@pytest.mark.parametrize(
    ("taken", "found"),
    [([0, 0], 0), ([0, ALL, ALL, ALL], 1), ([0, ALL**2, 0, ALL, 0, ALL**2], 1)],
    ids=["quiet", "then quiet", "never quiet"],
)
def test_it_is_measured_again_and_the_least_disturbed_counts(
    taken: list[float], found: int, capsys: pytest.CaptureFixture[str]
) -> None:
    accounts = iter(taken)
    tries = [partial(int, number) for number in range(TRIES)]
    one, share = undisturbed(tries, lambda: next(accounts))
    assert (one, share > SHARE) == (found, len(taken) == 2 * TRIES)
    assert capsys.readouterr().err.count("was not the machine's") == len(taken) // 2 - (share <= SHARE)


def test_what_is_settled_is_not_measured_again() -> None:
    accounts = iter([0, ALL, ALL, 2 * ALL])
    tries = [partial(int, number) for number in range(TRIES)]
    assert undisturbed(tries, lambda: next(accounts), lambda found: found == 1)[0] == 1


def test_a_machine_of_its_own_keeps_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(user=1.0, steal=7.5))
    assert stolen() == 7.5
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(user=1.0))
    assert stolen() == 0

"""The command for a machine with a GPU, here without one: all of it runs dry, and what goes wrong is told."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.gpu import engine_measures, verify
from bench.gpu.cases import BY_KEY, DRY, MEASURES
from bench.gpu.clocks import DryClock
from bench.gpu.run import Run
from bench.gpu.serving import Answers
from bench.gpu.table import Result, met, render, report

ROOT = Path(__file__).resolve().parents[2]


def _verify(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "bench/gpu/verify.py", *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.timeout(300)
def test_everything_but_the_figures_runs_without_a_gpu(tmp_path: Path) -> None:
    done = _verify("--dry", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "dry.json").read_text())
    values = {result["key"]: result["value"] for result in told["results"]}
    assert set(BY_KEY) <= set(values), "a measure is missing"
    assert None not in values.values()
    checks = [result for result in told["results"] if result["key"] not in BY_KEY]
    assert len(checks) >= 15
    assert all(check["met"] for check in checks)
    assert values["11.bits"] == 100
    lines = done.stdout.splitlines()
    assert len(lines) == 2 + len(MEASURES)
    assert lines[1].split()[:4] == ["checks", "that", "failed", "0"]


def test_without_a_gpu_it_says_so_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = _verify()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["there is no CUDA device here; --dry runs everything but the figures on a CPU"]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["step_profile.py"], ["tiny Qwen3, n=1:"]),
        (["tune.py", "--only", "wide,products", "--heads", "32/8/128"], ["wide, 32/8/128", "tiny o"]),
    ],
)
def test_the_tools_for_tuning_run_without_a_gpu(tmp_path: Path, words: list[str], lines: list[str]) -> None:
    argv = [sys.executable, f"bench/gpu/{words[0]}", *words[1:], "--dry", "--out", str(tmp_path / "told.json")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(line in done.stdout for line in lines)
    assert json.loads((tmp_path / "told.json").read_text())


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(SystemExit):
        verify.main(["--dry", "--only", "1,12"])


def _child(part: verify.Part, record: verify.Record, *, dry: bool) -> None:
    verify._child(Namespace(only="hw", dry=dry), part, record)


def test_a_part_in_a_process_of_its_own_tells_its_results(tmp_path: Path) -> None:
    record = verify.Record(tmp_path, 100, dry=True)
    _child(next(part for part in verify.PARTS if part.name == "hardware"), record, dry=True)
    assert [result.key for result in record.results] == ["hw.copy", "hw.matmul"]
    assert all(result.value for result in record.results)


def test_a_part_whose_process_ends_badly_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    record = verify.Record(tmp_path, 100, dry=True)
    _child(next(part for part in verify.PARTS if part.name == "hardware"), record, dry=False)  # it finds no GPU
    (result,) = record.results
    assert (result.key, result.value, result.note) == ("part hardware", None, "the process ended with 1")
    assert met(result) is False


def test_a_part_without_time_is_told(tmp_path: Path) -> None:
    record = verify.Record(tmp_path, 0, dry=True)
    _child(verify.PARTS[0], record, dry=True)
    assert [(result.value, result.note) for result in record.results] == [(None, "no time was left for it")]


def test_a_run_that_is_ended_early_has_told_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def child(_: Namespace, part: verify.Part, record: verify.Record) -> None:
        if part.name == "layer":
            raise KeyboardInterrupt
        record.add(Result(part.name, 0.0, goal=0))

    monkeypatch.setattr(verify, "_child", child)
    record = verify.Record(tmp_path, 100, dry=True)
    with pytest.raises(KeyboardInterrupt):
        verify._all(Namespace(), verify.PARTS, record)
    told = json.loads((tmp_path / "dry.json").read_text())["results"]
    before = [part.name for part in verify.PARTS if part.beside] + ["served", "hardware"]
    assert sorted([result["key"] for result in told]) == sorted(before)


def _run(seconds: float, told: list[Result]) -> Run:
    return Run(DryClock(), DRY, time.monotonic() + seconds, told.append)


def test_what_fails_is_told_and_the_rest_goes_on() -> None:
    told: list[Result] = []
    run = _run(100, told)

    def half() -> Iterator[Result]:
        yield Result("1.private", 9.0)
        raise ValueError("two\nlines")

    run.attempt(["1.private", "1.unaware"], half)
    run.attempt(["4.sdpa"], lambda: [Result("4.sdpa", float("nan"))])
    run.attempt(["log probabilities"], lambda: [Result("log probabilities", 0.1, goal=float("nan"))])
    run.attempt(["4.flex"], list)
    assert [(one.key, one.value, one.note) for one in told] == [
        ("1.private", 9.0, ""),
        ("1.unaware", None, "ValueError: two lines"),
        ("4.sdpa", None, "the value is nan"),
        ("log probabilities", None, "the goal is nan"),
        ("4.flex", None, "nothing was told"),
    ]
    assert "log probabilities" in render(told, {})


def test_nothing_begins_behind_the_end() -> None:
    told: list[Result] = []
    _run(-1, told).attempt(["6.small"], lambda: [Result("6.small", 1.0)])
    assert [(one.value, one.note) for one in told] == [(None, "no time was left")]


def test_rounds_end_with_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run, begun = _run(10, []), list[int]()
    monkeypatch.setattr(Run, "left", property(lambda _: 10 - 4 * len(begun)))
    for number in run.rounds(range(-1, 3)):
        begun.append(number)
    assert begun == [-1, 0]
    assert next(run.rounds(range(2)), None) == 0, "the first begins whatever is left"


def test_a_part_whose_time_ends_tells_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure 8 has a value after a single round; it told nothing before the last."""
    told: list[Result] = []
    made: list[dict[str, object]] = []
    run = _run(10, told)
    monkeypatch.setattr(Run, "left", property(lambda _: 10 - 5 * len(made)))

    class Served:
        def answer(self, _: object, **settings: object) -> Answers:
            made.append(settings)
            return Answers(seconds=1.0)

    run.attempt(["8.cold"], lambda: engine_measures._together(run, Served()))  # type: ignore[arg-type]
    assert len(made) == 6
    assert [(one.key, one.value) for one in told] == [("8.cold", 1.0), ("8.unaware", 1.0), ("8.cached", 1.0)]


def test_what_meets_its_goal() -> None:
    assert met(Result("1.private", 8.0))
    assert met(Result("1.private", 7.9)) is False
    assert met(Result("1.private", None)) is False
    assert met(Result("8.cached", 0.5)) is None
    assert met(Result("11.widest", 10.0))
    assert met(Result("11.widest", 10.1)) is False
    assert met(Result("10.blocks", 5, goal=5))
    assert met(Result("10.blocks", 6, goal=5)) is False
    assert met(Result("attention", 0.009, goal=0.01))
    assert met(Result("attention", 0.011, goal=0.01)) is False
    assert met(Result("attention", None, goal=0.01)) is False


def test_the_table() -> None:
    results = [
        Result("a kernel", 0.5, "wide", goal=0.01),
        Result("7.wide", 31234.5, "well"),
        Result("1.private", None, "OutOfMemoryError"),
    ]
    lines = render(results, {"7.wide": 33000.0, "1.private": 9.7}).splitlines()
    assert lines[1].split() == ["checks", "that", "failed", "1", "<=", "0", "NO", "of", "1"]
    assert lines[2].split() == ["a", "kernel", "error", "0.5", "0.01", "NO", "wide"]
    assert next(line for line in lines if "31,234" in line).split()[-6:] == [
        "31,234",
        "33,000",
        ">=",
        "30,000",
        "yes",
        "well",
    ]
    assert lines[5].split()[-6:] == ["-", "9.7", ">=", "8", "NO", "OutOfMemoryError"]
    told = report(results, {"7.wide": 33000.0}, {"torch": "2.11"})
    assert told["conditions"] == {"torch": "2.11"}
    assert [result["met"] for result in told["results"]] == [False, True, False]
    assert told["results"][1]["predicted"] == 33000.0


def test_results_survive_their_way_between_processes() -> None:
    result = Result("1.private", 9.25, "a note", detail={"us": 3.5})
    assert Result.parse(result.line()) == result

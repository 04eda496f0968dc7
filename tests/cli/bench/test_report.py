"""A report as lines, as JSON, beside an earlier one; and the doubts about its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from nproxy.cli.bench import compare, table
from nproxy.cli.bench.doubts import doubts
from nproxy.cli.bench.report import Client, Condition, Goodput, Report
from nproxy.cli.bench.tally import Tally
from nproxy.cli.wrong_use import WrongUse
from tests.cli.bench.records import failed, record, spoken

CLIENT = Client(nproxy="1", python="3.12.0", cores=2, cpu_share=0.1, late_p99=None)
CONDITIONS: dict[str, Condition] = {"endpoint": "chat/completions", "n": 2, "stream": True, "rate": 2.5, "seed": None}


def report(seconds: float = 10.0, *, speed: float = 1.0, bad: int = 0, **changed: Condition) -> Report:
    tally = Tally()
    for number in range(100):
        at = (number + 1) / 100 / speed
        tally.add(record(spoken(at, 2 * at), spoken(at, 3 * at), seconds=3 * at, completion=5))
    for _ in range(bad):
        tally.add(failed("429", "too many"))
    return Report(
        started="2026-01-01T00:00:00+00:00",
        url="http://a/v1",
        model="m",
        conditions={**CONDITIONS, **changed},
        interrupted=False,
        wall_seconds=seconds,
        tail_seconds=0.5,
        requests=tally.requests(begun=100 + bad),
        choices=tally.choices,
        tokens=tally.tokens(),
        per_second=tally.rates(seconds),
        latencies=tally.latencies(),
        errors=tally.errors(),
        client=CLIENT,
        warnings=("mind the gap",),
    )


def test_the_table() -> None:
    assert (
        "\n".join(table.lines(report(bad=3)))
        == """\
http://a/v1, m
endpoint chat/completions, n 2, stream, rate 2.5

requests                         100 answered, 3 failed
wall time                        10.00 s, 0.50 s of it after the last request was sent
requests/s                       10.00
choices/s                        20.00
completion tokens/s              50.0 (by usage)
tokens                           10.0 of prompt a request, 2.5 a choice
this client                      10% of a core

milliseconds                           p50      p90      p99      max    count
first token, of a request            500.0    900.0    990.0    1,000      100
first token, of each choice          500.0    900.0    990.0    1,000      200
between tokens of a choice           670.0    1,600    1,960    2,000      200
per output token, of a request       500.0    900.0    990.0    1,000      100
end of each choice                   1,200    2,400    2,940    3,000      200
end of a request                     1,500    2,700    2,970    3,000      100
first choice's end to the last's     500.0    900.0    990.0    1,000      100

failed
       3  429: too many

warning: mind the gap"""
    )


def test_the_table_fits_a_terminal() -> None:
    assert all(len(line) <= 80 for line in table.latencies(report()))


def test_the_table_says_what_was_cut_off_and_how_tokens_were_counted() -> None:
    before = report()
    early = before.model_copy(
        update={
            "interrupted": True,
            "requests": before.requests.model_copy(update={"unfinished": 4}),
            "tokens": before.tokens.model_copy(update={"by_chunks": 1}),
        }
    )
    said = "\n".join(table.lines(early))
    assert "100 answered, 0 failed, 4 cut off" in said
    assert "10.00 s (ended early)" in said
    assert "(by usage and by chunks)" in said


def test_the_table_says_what_was_cached_and_how_late_requests_were() -> None:
    whole = report()
    client = whole.client.model_copy(update={"late_p99": 0.0042})
    tokens = whole.tokens.model_copy(update={"cached": 250})
    said = "\n".join(table.lines(whole.model_copy(update={"client": client, "tokens": tokens})))
    assert "10.0 of prompt a request (25% of them cached), 2.5 a choice" in said
    assert "10% of a core, 1 in 100 requests sent 4.20 ms or more late" in said


def test_where_percentiles_are_not_exact_it_says_so() -> None:
    whole = report()
    assert "0.5 %" not in "\n".join(table.lines(whole))
    loose = {name: spread.model_copy(update={"exact": False}) for name, spread in whole.latencies.items()}
    assert "  (within 0.5 %)" in "\n".join(table.lines(whole.model_copy(update={"latencies": loose})))


def test_json_there_and_back(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(report(bad=1).model_dump_json())
    assert compare.read_report(file) == report(bad=1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Invalid JSON: EOF"),
        ("[]", "Input should be an object"),
        ("{}", "started: Field required"),
        ('{"bench": 2}', "bench: Input should be 1"),
        ("\xff", "Invalid JSON: expected value"),
    ],
)
def test_what_is_no_report(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(WrongUse, match=f"was not written by --save: {why}"):
        compare.read_report(file)


def test_goodput_stands_below_the_rate_and_is_compared() -> None:
    good = Goodput(bounds={"ttft": 500.0}, requests=75, share=0.75, per_second=7.5)
    bounded = report().model_copy(update={"goodput": good})
    assert "requests/s within bounds         7.50 (75.0% of all)" in table.lines(bounded)
    assert {row.title: row.ratio for row in compare.rows(bounded, bounded)}["requests/s within bounds"] == 1.0
    assert all("within bounds" not in row.title for row in compare.rows(report(), bounded))


def test_ratios_are_now_over_before() -> None:
    rows = {row.title: row for row in compare.rows(report(10.0), report(5.0, speed=4.0))}
    assert rows["choices/s"].ratio == 2.0
    assert rows["end of a request, p50 ms"].ratio == pytest.approx(0.25)
    assert len(rows) == 3 + 2 * 7
    nothing = report().per_second.model_copy(update={"requests": 0.0})
    assert next(compare.rows(report().model_copy(update={"per_second": nothing}), report())).ratio is None


def test_what_is_compared_unlike_is_said() -> None:
    said = list(compare.lines(report(), report(bad=2, n=4, seed=1), "a.json"))
    assert said[:4] == [
        "compared with a.json of 2026-01-01T00:00:00+00:00, http://a/v1, m",
        "differs: n: 2 before, 4 now",
        "differs: seed: not set before, 1 now",
        "differs: failed requests: 0 before, 2 now",
    ]
    assert not list(compare.differences(report(), report()))


def doubted(
    *,
    cpu: float = 0.1,
    late: float | None = None,
    by_chunks: int = 0,
    per_chunk: float | None = 1.0,
    tail: float = 0.1,
) -> list[str]:
    client = CLIENT.model_copy(update={"cpu_share": cpu, "late_p99": late})
    whole = report()
    tokens = whole.tokens.model_copy(update={"by_chunks": by_chunks})
    return list(doubts(client, whole.requests, tokens, per_chunk, tail))


def test_no_doubts() -> None:
    assert doubted() == doubted(late=0.005) == doubted(per_chunk=None) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (doubted(cpu=0.9), "used 90% of a core"),
        (doubted(late=0.25), "sent 250 ms or more after it was due"),
        (doubted(by_chunks=7), "7 of 100 answers had no usage"),
        (doubted(per_chunk=2.5), "a chunk holds 2.5 tokens"),
        (doubted(tail=0.4), "40% of the wall time passed after the last request was sent"),
        (doubted(tail=0.4, late=0.0), "or the server did not keep up with the rate"),
    ],
)
def test_doubts(found: list[str], words: str) -> None:
    (said,) = found
    assert words in said


def test_the_bound_on_samples_is_the_tally_s() -> None:
    small = Tally(bound=2)
    for _ in range(3):
        small.add(record(seconds=1.0))
    assert not small.latencies()["request"].exact

"""Medians, ratios and the page."""

import json

import pytest

from bench.engine.cells import Answer, Cell
from bench.engine.memory import peak_kib
from bench.engine.page import between, cpu, family
from bench.engine.record import Row, Seen, best, ratio
from bench.engine.table import tables

CELL, WIDE, APART = Cell(509, 1), Cell(509, 8), Cell(509, 8, apart=True)


def seen(*seconds: float, first: float | None = 0.1) -> Seen:
    return Seen([Answer(one, first, first and first + 0.2, 512) for one in seconds])


def rows() -> dict[str, Row]:
    ours = Row(True, {"torch": "2"}, "nproxy serve", "", 900, {CELL: seen(2.0), WIDE: seen(3, 1, 2), APART: seen(8.0)})
    quick = Row(False, {}, "quick", "", 700, {CELL: seen(1.0), WIDE: seen(4.0, first=None), APART: seen(12.0)})
    wrong = Row(False, {}, "wrong", "", 700, {CELL: Seen([], "63 tokens came, not 64"), WIDE: seen(5.0)})
    return {"ours": ours, "quick": quick, "wrong": wrong, "none": Row(False, missing="there is no cmake")}


def test_a_cell_is_the_median_of_its_rounds() -> None:
    assert seen(3, 1, 2).seconds == 2
    assert seen(3, 1, 2).rate == 256
    assert seen(1).last == pytest.approx(0.3)
    assert seen(1, first=None).first is None


def test_a_cell_that_was_wrong_once_has_no_figures() -> None:
    assert Seen([Answer(1.0, 0.1, 0.1, 64)], "63 tokens came, not 64").seconds is None
    assert Seen().seconds is None


def test_the_best_peer_is_none_of_ours_and_not_wrong() -> None:
    assert best(rows().values(), CELL) == 1.0
    assert ratio(rows()["ours"], rows().values(), CELL) == 2.0
    assert ratio(rows()["ours"], rows().values(), WIDE) == 0.5
    assert ratio(rows()["ours"], [rows()["ours"]], CELL) is None


def test_the_table_keeps_losing_cells_and_says_why_some_are_empty() -> None:
    assert tables(rows(), [CELL, WIDE, APART]).splitlines() == [
        "| prompt of 509 tokens | n=1 | n=8 | tokens/s, n=8 | first token of the first / last choice, n=8 | peak RSS |",
        "|---|---|---|---|---|---|",
        "| ours | 2.00 s | 2.00 s | 256 | 0.10 / 0.30 s | 900 MiB |",
        "| quick | 1.00 s | 4.00 s | 128 | - | 700 MiB |",
        "| wrong | - | 5.00 s | 102 | 0.10 / 0.30 s | 700 MiB |",
        "| none | - | - | - | - | - |",
        "| ours, by the best peer's | 2.00x | 0.50x |  |  |  |",
        "",
        "| prompt of 509 tokens | n=8 | 8 requests, 8 prompts | ratio |",
        "|---|---|---|---|",
        "| ours | 2.00 s | 8.00 s | 4.0x |",
        "| quick | 4.00 s | 12.00 s | 3.0x |",
        "| wrong | 5.00 s | - | - |",
        "| none | - | - | - |",
        "",
        "What is missing:",
        "",
        "- none: there is no cmake",
        "- wrong, 509 tokens, n=1: 63 tokens came, not 64",
        "",
        "How each was run:",
        "",
        "- ours: `nproxy serve` (torch 2)",
        "- quick: `quick` ()",
        "- wrong: `wrong` ()",
    ]


def test_a_row_comes_back_from_json() -> None:
    row = rows()["ours"]
    assert Row.from_json(json.loads(json.dumps(row.as_json()))) == row


def test_what_stands_between_the_marks_is_replaced_and_nothing_else() -> None:
    page = "above\n<!-- engine -->\nold\n<!-- end of engine -->\nbelow\n"
    assert between(page, "engine", "new\n") == "above\n<!-- engine -->\nnew\n<!-- end of engine -->\nbelow\n"


@pytest.mark.parametrize("page", ["nothing\n", "<!-- engine -->\n", "<!-- end of engine -->\n"])
def test_a_page_without_both_marks_is_left_alone(page: str) -> None:
    with pytest.raises(ValueError, match="the page has no line <!--"):
        between(page, "engine", "new\n")


def test_the_cpu_is_told_with_what_it_has_for_products() -> None:
    info = "processor : 0\nmodel name : Some CPU @ 2\nflags : fpu avx512f avx2 sse\n"
    assert cpu(info) == {"cpu": "Some CPU @ 2", "has": ["avx2", "avx512f"]}


def test_a_processor_without_avx_512_has_a_record_of_its_own() -> None:
    assert family({"has": ["avx2", "avx512f"]}) == ""
    assert family({"has": ["avx2", "avx512f", "avx512_bf16"]}) == "-bf16"
    assert family({"has": ["avx2", "avx512f", "avx512_bf16", "amx_bf16"]}) == "-amx"
    assert family({"has": ["avx2"]}) == "-avx2"


def test_the_peak_of_a_process() -> None:
    assert peak_kib(["Name:\tpython", "VmPeak:\t 900 kB", "VmHWM:\t  123456 kB"]) == 123456
    assert peak_kib(["Name:\tkthreadd"]) == 0

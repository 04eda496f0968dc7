"""The page depends only on the records, and the page in docs/ is that of the records beside it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from nproxy.cli.probe.findings import Finding, completed, no, unknown, yes
from tests.compatibility.page import FILE, PAGE, page, table
from tests.compatibility.record import Outcome, Record, load, save
from tests.compatibility.servers import SERVERS

PASSED, FAILED, OUT = Outcome("pass"), Outcome("fail", "two | came"), Outcome("not applicable", "no *echo*")


def record(n: Finding) -> Record:
    chat = {"available": yes("answered"), "n": n, "seed": unknown("not answered")}
    sections = {name: completed(name, chat if name == "chat" else {}) for name in ("server", "chat", "completions")}
    return Record(
        versions={"served": "1.2"},
        findings=sections,
        entry="upstreams: []",
        outcomes={
            "choices": {"auto": PASSED, "fanout": PASSED},
            "streams": {"auto": PASSED, "native": FAILED, "fanout": PASSED},
            "echo": {"auto": OUT, "fanout": OUT},
        },
    )


RECORDS = {
    "one": record(no("ignored", "ignored")),
    "gone": Record(missing="no compiler"),
    "two": record(yes("128", 128)),
}


def lines(word: str) -> list[str]:
    return [line for line in page(RECORDS).splitlines() if word in line]


def test_a_server_that_could_not_be_had_keeps_its_row() -> None:
    assert lines("gone") == ["| gone | not examined: no compiler |"]


def test_facts_that_nobody_was_asked_are_left_out() -> None:
    assert lines("native n") == ["| native n | no: ignored | yes: 128 |"]
    assert lines("honours seed") == ["| honours seed | – | – |"]
    assert lines("logprobs |") == []


def test_a_fact_that_came_later_was_not_asked_for(tmp_path: Path) -> None:
    older, file = record(no("ignored")), tmp_path / "records.json"
    server = {name: found for name, found in older.findings["server"].items() if name != "at_once"}
    save(file, {"older": replace(older, findings={**older.findings, "server": server})})
    assert load(file) == {"older": older}


def test_outcomes() -> None:
    assert [line.rsplit("|", 3)[1:3] for line in lines("**choices**")] == [[" ✓ ", " ✓ "]]
    assert [line.rsplit("|", 3)[1] for line in lines("**streams**")] == [" ✓ auto, fanout; **✗** native "]
    assert [line.rsplit("|", 3)[1] for line in lines("**echo**")] == ["  "]


def test_reasons_are_told_once_for_all_that_share_them() -> None:
    assert lines("two | came") == ["- one, streams (native): two | came", "- two, streams (native): two | came"]
    assert lines("no \\*echo\\*") == ["- one, echo: no \\*echo\\*", "- two, echo: no \\*echo\\*"]


def test_a_bar_in_a_cell() -> None:
    assert table(["a"], iter([["x|y"]])) == "| a |\n| --- |\n| x\\|y |\n"


def test_records_survive_their_file(tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    assert load(file) == {}
    save(file, RECORDS)
    assert load(file) == RECORDS


def test_the_page_in_docs_is_up_to_date() -> None:
    assert PAGE.read_text() == page(load(FILE))
    assert set(load(FILE)) <= set(SERVERS)


def test_it_says_nothing_of_the_machine_that_made_it() -> None:
    for file in (FILE, PAGE):
        assert not re.search(r"/(root|home|tmp|work)/|127\.0\.0\.1:(?!8000)\d|20\d\d-\d\d-\d\d", file.read_text()), file

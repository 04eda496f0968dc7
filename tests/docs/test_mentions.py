"""What pages and docstrings mention exists: commands, options, settings, files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, blocks_of, written
from tests.docs.mentions import alternatives, mentions, wrong_command, wrong_setting
from tests.real.processes import ROOT

FILES = written(".md", ".py", ".sh", ".mjs", ".js", ".yaml", ".yml", ".toml", "Makefile", "Containerfile", ".service")


def test_commands_in_sentences_are_good_ones() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}: {said}: {why}"
        for file in FILES
        if file != Path(__file__)
        for said in mentions(file.read_text(encoding="utf-8"))
        if (why := wrong_command(said, file.parent)) is not None
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "said",
    [
        "nproxy frob",
        "nproxy keys knew team-a",
        "nproxy serve --upstraem URL",
        "nproxy check FILE && nproxy serve --cfg FILE",
        "make sreve",
        "python -m bench.laod wide",
        "python -m bench.load wide --klients 1000",
        "python bench/none.py",
        "pip install '.[engin]'",
        "pip install opneai",
    ],
)
def test_a_wrong_command_is_seen(said: str) -> None:
    assert wrong_command(said) is not None


def test_settings_in_sentences_are_good_ones() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}: {said}: {why}"
        for file in PAGES
        for said in mentions(file.read_text(encoding="utf-8"))
        if (why := wrong_setting(said)) is not None
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "said",
    [
        "limits.memory_mb",
        "timeouts.idel",
        "resume: repaly",
        "resume: replay | go on",
        "paralel: 4",
        "n: {native_upto: 4}",
        "NPROXY_LISTEN__PROT=9000",
        "NPROXY_UPSTREAMS__0__M=fanout",
    ],
)
def test_a_wrong_setting_is_seen(said: str) -> None:
    assert wrong_setting(said) is not None


@pytest.mark.parametrize(
    "said", ["n: 8", "error.type", "nproxy.leg", "listen.port", "resume: off", "`", "finish_reason: x"]
)
def test_what_is_no_setting_or_a_good_one_is_none_of_that(said: str) -> None:
    assert wrong_setting(said) is None


def test_what_settings_take_as_well_is_taken() -> None:
    said = {one: str(block) for page in PAGES for block in blocks_of(page) for one in alternatives(block.text)}
    assert len(said) > 10
    assert {one: block for one, block in said.items() if wrong_setting(one) is not None} == {}


def test_alternatives_are_read_from_comments() -> None:
    text = "a:\n  - n: auto   # auto | {native_up_to: 4}\n    greedy: accept  # at n > 1: accept | reject (400: no)\n"
    assert list(alternatives(text)) == ["n: auto", "n: {native_up_to: 4}", "greedy: accept", "greedy: reject"]


def test_what_stands_in_a_sentence_is_found() -> None:
    said = (
        "`nproxy check FILE`, or ``make test`` (python -m bench.load):\n```sh\nnproxy frob\n```\n`nproxy check FILE`."
    )
    assert list(mentions(said)) == ["nproxy check FILE", "make test", "python -m bench.load"]

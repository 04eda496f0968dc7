"""What requests say, and whose word counts: what was typed, else the line, else the default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.cli.bench.asking import Form
from nproxy.cli.bench.prompts import Lines, Prompts, RandomWords, Same, read_lines
from nproxy.cli.wrong_use import WrongUse
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON

CHAT, COMPLETIONS = Dialect.CHAT, Dialect.COMPLETIONS


def text(prompts: Prompts, number: int) -> list[str]:
    prompt = prompts.fields(number)["prompt"]
    assert isinstance(prompt, str)
    return prompt.split()


@given(st.integers(1, 300), st.integers(0, 300), st.integers(0, 2**31))
def test_random_words_differ_behind_what_they_share(count: int, shared: int, seed: int) -> None:
    shared = min(shared, count)
    prompts = RandomWords(count, shared, seed, COMPLETIONS)
    first, second = text(prompts, 0), text(prompts, 1)
    assert len(first) == len(second) == count
    assert first[:shared] == second[:shared]
    assert first == text(prompts, 0)
    if count - shared >= 8:  # that eight drawn words are the same is a matter of once in 10**21
        assert first[shared:] != second[shared:]
        assert first != text(RandomWords(count, shared, seed + 1, COMPLETIONS), 0)


def body(prompts: Prompts, number: int = 0, *, seed: int | None = None, **typed: JSON) -> Any:
    form = Form(prompts, typed, {"model": "m", "n": 1, "max_tokens": 9, "stream": True}, seed)
    return json.loads(form.ask(number).body)


HELLO = Same("hello", CHAT)


def test_a_body() -> None:
    assert body(HELLO) == {
        "model": "m",
        "n": 1,
        "max_tokens": 9,
        "stream": True,
        "messages": [{"role": "user", "content": "hello"}],
        "stream_options": {"include_usage": True},
    }
    assert "stream_options" not in body(HELLO, stream=False)
    assert body(Same("hello", COMPLETIONS))["prompt"] == "hello"


def test_what_was_typed_goes_over_the_line_and_the_line_over_the_default() -> None:
    lines = Lines("x", [{"messages": [1], "n": 3, "max_tokens": 5, "top_k": 4, "model": "other", "stream": False}])
    assert body(lines, n=7) == {
        "model": "other",
        "n": 7,
        "max_tokens": 5,
        "top_k": 4,
        "stream": False,
        "messages": [1],
    }


def test_a_line_takes_a_field_away_by_null() -> None:
    assert "stream_options" not in body(Lines("x", [{"prompt": "a", "stream_options": None}]))


def test_lines_come_again() -> None:
    lines = Lines("x", [{"prompt": "a"}, {"prompt": "b"}])
    assert [body(lines, number)["prompt"] for number in range(5)] == ["a", "b", "a", "b", "a"]


def test_no_two_choices_of_a_run_have_the_same_seed() -> None:
    assert "seed" not in body(HELLO)
    assert [body(HELLO, number, seed=5, n=4)["seed"] for number in range(3)] == [5, 9, 13]
    assert body(HELLO, 1, seed=2**31 - 1)["seed"] == 0


@pytest.mark.parametrize(
    ("prompt", "choices"), [("a", 2), (["a", "b", "c"], 6), ([1, 2, 3], 2), ([[1], [2, 3]], 4), ([], 2)]
)
def test_how_many_choices_an_answer_must_have(prompt: JSON, choices: int) -> None:
    assert Form(Lines("x", [{"prompt": prompt}]), {"n": 2}, {}).ask(0).choices == choices


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lines.jsonl"


def test_a_dataset(file: Path) -> None:
    file.write_text('{"prompt": "a", "n": 2}\n\n{"messages": [{"role": "user", "content": "b"}]}\n')
    said = read_lines(file, CHAT).bodies
    assert said == [
        {"n": 2, "messages": [{"role": "user", "content": "a"}]},
        {"messages": [{"role": "user", "content": "b"}]},
    ]
    file.write_text('{"prompt": [1, 2]}\n{"prompt": "b"}')
    assert read_lines(file, COMPLETIONS).bodies == [{"prompt": [1, 2]}, {"prompt": "b"}]


@pytest.mark.parametrize(
    ("lines", "dialect", "why"),
    [
        ('{"prompt": "a"}\n{"prompt', CHAT, "line 2: not JSON"),
        ('{"prompt": ["a"]}', CHAT, 'line 1: must be an object with "messages" or a "prompt"'),
        ('{"messages": []}', CHAT, 'line 1: must be an object with "messages" or a "prompt"'),
        ('{"messages": [1]}', COMPLETIONS, 'line 1: must be an object with a "prompt"'),
        ("[]", CHAT, "line 1: must be an object"),
        ("\n \n", CHAT, "contains no requests"),
    ],
)
def test_what_is_no_dataset(file: Path, lines: str, dialect: Dialect, why: str) -> None:
    file.write_text(lines)
    with pytest.raises(WrongUse) as error:
        read_lines(file, dialect)
    assert why in str(error.value)


def test_no_file(file: Path) -> None:
    with pytest.raises(WrongUse, match="No such file"):
        read_lines(file, CHAT)

"""GBNF as llama.cpp reads it: escapes, classes and names, by what the compiled grammars accept."""

from __future__ import annotations

import json

import pytest

from engine.gbnf import prepared
from engine.grammar import in_lark


def lark(gbnf: str) -> list[str]:
    (made,) = json.loads(in_lark(json.dumps({"grammars": [{"gbnf": gbnf}]})))["grammars"]
    return [line for line in made["lark_grammar"].splitlines()[1:] if line]


@pytest.mark.parametrize(
    ("gbnf", "expected"),
    [
        (r'"\u00e9"', '"é"'),
        (r"[\u00e9-\u00ff]", "/[é-ÿ]/"),
        (r'"\U0001F600\u4e00"', '"😀一"'),
        (r'"\u0041"', r'"\x41"'),
        (r'"\\u00e9" "\n"', r'"\\u00e9" "\n"'),
        ('"a\tb"', r'"a\tb"'),
        ('"a\x7fb"', r'"a\x7fb"'),
        ("[+--]", r"/[+-\x2d]/"),
        ("[a&&b]{3}", r"/[a\x26\x26b]/{3,3}"),
        ("[--a] [^-a] [a-]", r"/[\x2d-a]/ /[^\x2da]/ /[a\x2d]/"),
        (r"[$[\]]", r"/[$\x5b\]]/"),
    ],
)
def test_escapes_and_classes_mean_what_they_mean_in_llama_cpp(gbnf: str, expected: str) -> None:
    assert lark(f"root ::= {gbnf}") == [f"start: {expected}"]


@pytest.mark.parametrize(
    ("gbnf", "rules"),
    [
        ('root ::= start "x"\nstart ::= "a"', 2),
        ('root ::= a-b a_b\na-b ::= "x"\na_b ::= "y"', 3),
        ('root ::= A a\nA ::= "x"\na ::= "y"', 3),
        ('root ::= foo-bar fooBar foo_bar\nfoo-bar ::= "x"\nfooBar ::= "y"\nfoo_bar ::= "z"', 4),
        ('root ::= aBC a-bC\naBC ::= "x"\na-bC ::= "y" a-b-c\na-b-c ::= "z" root?', 4),
        ('root ::= a a-1 A\na ::= "x"\na-1 ::= "y"\nA ::= "z"', 4),
    ],
)
def test_names_differ_as_they_do_in_llama_cpp(gbnf: str, rules: int) -> None:
    names = [line.partition(":")[0] for line in lark(gbnf)]
    assert len(set(names)) == rules and "start" in names


def test_what_is_right_stays_as_it_is() -> None:
    grammar = 'root ::= "yes" | no # "a comment\nno ::= [a-z0-9_]+ <think> ("b" | [^\\n])*\n'
    assert prepared(grammar) == grammar


@pytest.mark.timeout(20)  # a search from each bracket to the end of the text would take many minutes
@pytest.mark.parametrize("text", ["[" * 250_000, "[" * 250_000 + "\\", '["' * 120_000, "a " * 120_000, '"' * 250_001])
def test_a_long_grammar_is_read_in_proportion_to_its_length(text: str) -> None:
    assert len(prepared(text)) >= len(text)

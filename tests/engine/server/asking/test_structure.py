"""What clients say of an answer's form: who says it how, what becomes of it, what is refused by which name."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from engine.grammar import MOST_BYTES, Compiler
from engine.server.asking.structure import FIELDS, free_text_to, grammar_of, read_structure, regex_rule, text_rule
from nproxy.openai.errors import ApiError
from tests.engine.test_grammar import END, VOCABULARY, tokenizer

SCHEMA = {"type": "integer", "minimum": 1, "maximum": 12}
NAMED = {"name": "number", "schema": SCHEMA, "strict": True}


def named(**fields: Any) -> dict[str, Any]:
    """OpenAI's way to send a schema."""
    return {"response_format": {"type": "json_schema", "json_schema": {**NAMED, **fields}}}


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(tokenizer(), VOCABULARY, {END})


def takes(compiler: Compiler, grammar: str, *tokens: int) -> bool:
    """Whether a grammar lets these tokens through, an end among them if one is named."""
    matcher = compiler.compile(grammar).matcher.deep_copy()
    for token in tokens:
        if not matcher.compute_bitmask()[token // 8] >> token % 8 & 1:
            return False
        matcher.consume_token(token)
    return True


# Tokens of test_grammar: 0 "a", 1 "b", 2 "c", 3 "ab", 7 "1", 8 "12", 9 "2", 10 the end, 11 <mark>.
@pytest.mark.parametrize(
    ("fields", "taken", "refused"),
    [
        (named(), (8, END), (9, 9)),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, (8, END), (9, 9)),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, (8, END), (9, 9)),
        ({"structured_outputs": {"json": SCHEMA}}, (8, END), (9, 9)),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, (8, END), (9, 9)),
        ({"structured_outputs": {"regex": "a+1", "json": None, "json_object": False}}, (0, 0, 7, END), (0, END)),
        ({"structured_outputs": {"choice": ["ab", "c"]}}, (2, END), (0, END)),
        ({"structured_outputs": {"grammar": 'start: "b"+ "2"'}}, (1, 1, 9, END), (9,)),
        ({"structured_outputs": {"grammar": 'root ::= "b"+ "2"'}}, (1, 1, 9, END), (9,)),
        ({"structured_outputs": {"grammar": 'start: "c" | x // y ::= z\nx: "::=" "b"'}}, (2, END), (1,)),
        ({"structured_outputs": {"grammar": '# start: "c"\n\n  root  ::= x-1\n\tx-1::= "b"'}}, (1, END), (2,)),
        ({"guided_json": SCHEMA}, (8, END), (9, 9)),
        ({"guided_regex": "a/?1"}, (0, 7, END), (0, END)),
        ({"guided_choice": ["ab", "c"]}, (3, END), (1,)),
        ({"guided_grammar": 'start: "c"'}, (2, END), (0,)),
        ({"json_schema": SCHEMA}, (8, END), (9, 9)),
        ({"grammar": 'root ::= "b"'}, (1, END), (0,)),
        ({"regex": "a\n?"}, (0, END), (1,)),
        ({"ebnf": 'root ::= "b"'}, (1, END), (0,)),
    ],
)
def test_every_spelling_of_every_kind(
    compiler: Compiler, fields: dict[str, Any], taken: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    structure = read_structure(fields)
    assert structure is not None
    assert structure.field == next(iter(fields))
    assert takes(compiler, structure.grammar, *taken)
    assert not takes(compiler, structure.grammar, *refused)


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, dict.fromkeys(FIELDS)])
def test_what_asks_for_nothing(fields: dict[str, Any]) -> None:
    assert read_structure(fields) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": 1}}, "response_format.type"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        (named(strict=1), "response_format.json_schema.strict"),
        (named(name=1), "response_format.json_schema.name"),
        (named(extra=1), "response_format.json_schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice.1"),
        ({"guided_choice": ["a"] * 1025}, "guided_choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": r'{"type": "string", "title": "\ud800"}'}, "guided_json"),
        ({"guided_json": "[" * 2000}, "guided_json"),
        ({"guided_json": [SCHEMA]}, "guided_json"),
        ({"guided_json": {"x-guidance": {"lenient": True}, "not": {}}}, "guided_json"),
        ({"grammar": 'start: x\nx[temperature=0.1]: "a"'}, "grammar"),
        ({"grammar": 'start: "a"', "guided_regex": "a"}, "grammar"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
    ],
)
def test_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_structure(fields)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.timeout(20)  # a search from each bracket to the end of the text would take many minutes
@pytest.mark.parametrize("text", ["[" * 250_000, "\n" * 250_000, " " * 250_000, "a " * 120_000, "a" * 250_000])
def test_a_long_grammar_is_read_in_proportion_to_its_length(text: str) -> None:
    assert read_structure({"grammar": text}) is not None


def test_a_schema_that_is_too_long_is_not_even_read() -> None:
    with pytest.raises(ApiError, match="longer than") as refused:
        read_structure({"guided_json": '{"enum": ["' + "x" * MOST_BYTES + '"]}'})
    assert refused.value.param == "guided_json"


def test_several_fields_may_say_the_same() -> None:
    """As guidance sends a grammar to any vLLM, by its older name and its newer one."""
    grammar = 'start: "a" | "b"'
    both = read_structure({"guided_grammar": grammar, "structured_outputs": {"grammar": grammar}})
    one = read_structure({"guided_grammar": grammar})
    assert both is not None and one is not None and both.grammar == one.grammar


@pytest.mark.parametrize("pattern", ["a/b", r"a\/b", "a\nb", r"[/]", "a\\\nb", "\\\\/b", r"\w+"])
def test_a_pattern_stays_inside_its_slashes(compiler: Compiler, pattern: str) -> None:
    compiler.compile(grammar_of(any_of(pattern)))


def any_of(pattern: str) -> str:
    """The pattern, or an "a", so that the tokens at hand have a text to write."""
    return f'({regex_rule(pattern)} | "a")'


def test_free_text_ends_at_the_first_marker(compiler: Compiler) -> None:
    by_text = grammar_of('head "2"', free_text_to("head", "abc"))
    assert takes(compiler, by_text, 1, 3, 3, 2, 9, END)
    assert not takes(compiler, by_text, 3, 2, 1)
    by_token = grammar_of('head "2"', free_text_to("head", 11))
    assert takes(compiler, by_token, 1, 3, 11, 9, END)
    assert not takes(compiler, by_token, 1, 3, 11, 1)


def spelled(texts: list[str]) -> tokenizers.Tokenizer:
    """A tokenizer whose tokens are the characters of some texts."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted({letter for text in texts for letter in letters.pre_tokenize_str(text)[0][0]})
    made = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer, made.decoder = letters, decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<end>", special=True)])
    return made


INDENTED = '{\n  "a": [\n    1,\n    2\n  ]\n}'


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ('{"a":[1,2]}', True),
        ('{"a": [1, 2]}', True),
        (INDENTED, True),
        (INDENTED.replace("  ", "\t"), True),
        ("{\n" + " " * 24 + '"a": [1]}', True),
        ("{\n" + " " * 25 + '"a": [1]}', False),
        ('{\n\n"a": [1]}', False),
        ('{"a":  [1]}', False),
        (' {"a": [1]}', False),
        ('{"a": [1]} ', False),
    ],
)
def test_whitespace_in_json_has_a_bound(text: str, whole: bool) -> None:
    schema: dict[str, Any]
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}
    made = spelled([text, '{}"a:[],1 \n\t'])
    structure = read_structure({"guided_json": schema})
    assert structure is not None
    end = made.token_to_id("<end>")
    assert end is not None
    tokens = [*made.encode(text, add_special_tokens=False).ids, end]
    assert takes(Compiler(made.to_str(), end + 1, {end}), structure.grammar, *tokens) == whole


def test_texts_are_taken_letter_by_letter() -> None:
    assert text_rule('"é\n\\') == '"\\"é\\n\\\\"'


def test_every_character_of_ascii_may_be_in_a_choice() -> None:
    texts = [chr(code) for code in range(0x80)]
    made = spelled(texts)
    structure = read_structure({"guided_choice": [*texts]})
    assert structure is not None
    end = made.token_to_id("<end>")
    assert end is not None
    compiler = Compiler(made.to_str(), end + 1, {end})
    assert all(takes(compiler, structure.grammar, *made.encode(text).ids, end) for text in texts)

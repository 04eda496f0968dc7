"""Tool calls as each family's models write them, whole, by characters, and in any pieces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.parsers.calls import CallParser
from engine.text.parsers.families import Families, parser_for
from engine.text.parsers.parts import Content, Parser, Part, ToolArguments, ToolStart
from engine.text.parsers.syntaxes import SYNTAXES
from engine.text.parsers.tags import TagParser, TagSyntax
from nproxy.openai.jsonvalue import JSON
from tests.engine.text.parsers.folding import ChoiceText, counting, fold, read

FUNCTIONS: dict[str, JSON] = {
    "weather": {"properties": {"city": {"type": "string"}, "days": {"type": "array"}, "home": {"type": "boolean"}}},
    "now": {"type": "object"},
    "note": {"properties": {"text": {"type": "string"}, "to": {"type": ["string", "null"]}, "n": {"type": "integer"}}},
}
PARIS, OSLO = '{"city": "Paris"}', '{"city": "Oslo", "days": [1, 2]}'
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

QWEN_PARIS = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
QWEN_OSLO = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n[1, 2]\n</parameter>\n"
    "</function>\n</tool_call>"
)
GLM_PARIS = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"
GLM_OSLO = (  # as since GLM-4.7
    "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key>"
    "<arg_value>[1, 2]</arg_value></tool_call>"
)

ONE = [("weather", PARIS)]
TWO = [("weather", PARIS), ("weather", OSLO)]

ROWS: dict[str, tuple[str, str, ChoiceText]] = {
    "hermes": (
        "hermes",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        ChoiceText(calls=ONE),
    ),
    "hermes: two, and text before": (
        "hermes",
        f'I look.\n<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "weather", "arguments": {OSLO}}}\n</tool_call>\n',
        ChoiceText("I look.", calls=TWO),
    ),
    "hermes: text behind": (
        "hermes",
        f'<tool_call>{{"name": "weather", "arguments": {PARIS}}}</tool_call>\nDone. ',
        ChoiceText("\nDone. ", calls=ONE),
    ),
    "hermes: no marks": (
        "hermes",
        'Say {"name": "weather", "arguments": {}} < 3',
        ChoiceText('Say {"name": "weather", "arguments": {}} < 3'),
    ),
    "hermes: space only": ("hermes", " \n", ChoiceText(" \n")),
    "hermes: a mark and no object": (
        "hermes",
        "use <tool_call> tags </tool_call>",
        ChoiceText("use <tool_call> tags </tool_call>"),
    ),
    "hermes: members in another order": (
        "hermes",
        '<tool_call>{"arguments": {"name": "x"}, "name": "note"}</tool_call>',
        ChoiceText(calls=[("note", '{"name": "x"}')]),
    ),
    "hermes: a number in another order that JSON cannot say again": (
        "hermes",
        '<tool_call>{"arguments": {"x": 1e999}, "name": "note"}</tool_call>',
        ChoiceText('<tool_call>{"arguments": {"x": 1e999}, "name": "note"}</tool_call>'),
    ),
    "hermes: the object of OpenAI's wire": (
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "note", "arguments": {}}}</tool_call>',
        ChoiceText(calls=[("note", "{}")]),
    ),
    "hermes: arguments as a string": (
        "hermes",
        r'<tool_call>{"name": "weather", "arguments": "{\"city\": \"Paris\"}"}</tool_call>',
        ChoiceText(calls=ONE),
    ),
    "hermes: a string that holds no object": (
        "hermes",
        '<tool_call>{"name": "note", "arguments": "hello"}</tool_call>',
        ChoiceText(calls=[("note", '"hello"')]),
    ),
    "hermes: no arguments": ("hermes", '<tool_call>{"name": "now"}</tool_call>', ChoiceText(calls=[("now", "{}")])),
    "hermes: null arguments": (
        "hermes",
        '<tool_call>{"name": "now", "arguments": null}</tool_call>',
        ChoiceText(calls=[("now", "{}")]),
    ),
    "hermes: a closing mark in a string": (
        "hermes",
        '<tool_call>{"name": "note", "arguments": {"text": "a </tool_call> \\" } \\\\"}}</tool_call>',
        ChoiceText(calls=[("note", '{"text": "a </tool_call> \\" } \\\\"}')]),
    ),
    "hermes: a bracket is missing": (
        "hermes",
        f'<tool_call>{{"name": "weather", "arguments": {PARIS}</tool_call> Hm.',
        ChoiceText(" Hm.", calls=ONE),
    ),
    "hermes: two brackets are missing": (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "Paris"</tool_call>',
        ChoiceText(calls=[("weather", '{"city": "Paris"')]),
    ),
    "hermes: cut off in the arguments": (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "Pa',
        ChoiceText(calls=[("weather", '{"city": "Pa')]),
    ),
    "hermes: cut off in the name": (
        "hermes",
        'So:\n<tool_call>\n{"name": "wea',
        ChoiceText('So:\n<tool_call>\n{"name": "wea'),
    ),
    "hermes: cut off in the mark": ("hermes", "So: <tool_c", ChoiceText("So: <tool_c")),
    "hermes: no closing mark": (
        "hermes",
        f'<tool_call>{{"name": "weather", "arguments": {PARIS}}}',
        ChoiceText(calls=ONE),
    ),
    "hermes: not JSON, then a call": (
        "hermes",
        '<tool_call>{"name" = "weather"}</tool_call>'
        f'<tool_call>{{"name": "weather", "arguments": {PARIS}}}</tool_call>',
        ChoiceText('<tool_call>{"name" = "weather"}</tool_call>', calls=ONE),
    ),
    "hermes: no name": ("hermes", '<tool_call>{"nom": 1}</tool_call>', ChoiceText('<tool_call>{"nom": 1}</tool_call>')),
    "qwen3-coder": ("qwen3-coder", QWEN_PARIS, ChoiceText(calls=ONE)),
    "qwen3-coder: two, and text before": (
        "qwen3-coder",
        f"I look.\n{QWEN_PARIS}\n{QWEN_OSLO}\n",
        ChoiceText("I look.", calls=TWO),
    ),
    "qwen3-coder: text behind": ("qwen3-coder", f"{QWEN_PARIS}\nDone. ", ChoiceText("\nDone. ", calls=ONE)),
    "seed-oss: two, text before, and values as they are": (
        "seed-oss",
        "I look.\n<seed:tool_call>\n<function=note>\n<parameter=text>\na\n</parameter>\n<parameter=n>12</parameter>\n"
        "</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        ChoiceText("I look.", calls=[("note", '{"text": "\\na\\n", "n": 12}'), ("now", "{}")]),
    ),
    "seed-oss: tags without its mark": (
        "seed-oss",
        "<function=note>\n<parameter=text>a</parameter>\n</function>",
        ChoiceText("<function=note>\n<parameter=text>a</parameter>\n</function>"),
    ),
    "qwen3-coder: values by their types": (
        "qwen3-coder",
        "<tool_call>\n<function=note>\n<parameter=text>\n12\n</parameter>\n<parameter=to>\nNone\n</parameter>\n"
        "<parameter=n>\n12\n</parameter>\n<parameter=x>\n{}\n</parameter>\n</function>\n</tool_call>",
        ChoiceText(calls=[("note", '{"text": "12", "to": null, "n": 12, "x": {}}')]),
    ),
    "qwen3-coder: values of other types": (
        "qwen3-coder",
        "<tool_call>\n<function=note>\n<parameter=n>\n1.5\n</parameter>\n<parameter=to>\nNobody\n</parameter>\n"
        "</function>\n</tool_call>",
        ChoiceText(calls=[("note", '{"n": "1.5", "to": "Nobody"}')]),
    ),
    "qwen3-coder: line ends, marks and quotes in a value": (
        "qwen3-coder",
        '<tool_call>\n<function=note>\n<parameter=text>\n\n "a" </tool_call>\n</function> \\ é<parameter=b>\n\n'
        "</parameter>\n</function>\n</tool_call>",
        ChoiceText(calls=[("note", r'{"text": "\n \"a\" </tool_call>\n</function> \\ é<parameter=b>\n"}')]),
    ),
    "qwen3-coder: an empty value": (
        "qwen3-coder",
        "<tool_call>\n<function=note>\n<parameter=text>\n</parameter>\n</function>\n</tool_call>",
        ChoiceText(calls=[("note", '{"text": ""}')]),
    ),
    "qwen3-coder: no line ends": (
        "qwen3-coder",
        "<tool_call><function=weather><parameter=city>Paris</parameter></function></tool_call>",
        ChoiceText(calls=ONE),
    ),
    "qwen3-coder: no arguments": (
        "qwen3-coder",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        ChoiceText(calls=[("now", "{}")]),
    ),
    "qwen3-coder: the first mark is missing": (
        "qwen3-coder",
        "On it.\n\n" + QWEN_PARIS.removeprefix("<tool_call>\n"),
        ChoiceText("On it.", calls=ONE),
    ),
    "qwen3-coder: it is missing before an unknown function": (
        "qwen3-coder",
        "<function=rm>\n<parameter=path>\n/\n</parameter>\n</function>",
        ChoiceText("<function=rm>\n<parameter=path>\n/\n</parameter>\n</function>"),
    ),
    "qwen3-coder: an unknown function": (
        "qwen3-coder",
        "<tool_call>\n<function=rm>\n<parameter=path>\n/\n</parameter>\n<parameter=deep>\ntrue\n</parameter>\n"
        "</function>\n</tool_call>",
        ChoiceText(calls=[("rm", '{"path": "/", "deep": true}')]),
    ),
    "qwen3-coder: the mark behind a value is missing": (
        "qwen3-coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
        ChoiceText(calls=ONE),
    ),
    "qwen3-coder: the mark behind the values is missing": (
        "qwen3-coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</tool_call>",
        ChoiceText(calls=ONE),
    ),
    "qwen3-coder: something else behind a value": (
        "qwen3-coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\nHm.",
        ChoiceText("\nHm.", calls=[("weather", '{"city": "Paris"')]),
    ),
    "qwen3-coder: cut off in a string": (
        "qwen3-coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nPa\n</para",
        ChoiceText(calls=[("weather", '{"city": "Pa')]),
    ),
    "qwen3-coder: cut off in another value": (
        "qwen3-coder",
        "<tool_call>\n<function=note>\n<parameter=n>\n12",
        ChoiceText(calls=[("note", '{"n": ')]),
    ),
    "qwen3-coder: cut off behind a value": (
        "qwen3-coder",
        "<tool_call>\n<function=note>\n<parameter=n>\n12\n</parameter>\n</func",
        ChoiceText(calls=[("note", '{"n": 12')]),
    ),
    "qwen3-coder: cut off in the name": (
        "qwen3-coder",
        "So:\n<tool_call>\n<function=wea",
        ChoiceText("So:\n<tool_call>\n<function=wea"),
    ),
    "qwen3-coder: words": (
        "qwen3-coder",
        "a <tool_call> with <function=weather> in it, and <function=weather",
        ChoiceText("a <tool_call> with <function=weather> in it, and <function=weather"),
    ),
    "glm": ("glm", GLM_PARIS, ChoiceText(calls=ONE)),
    "glm: two, and text before": ("glm", f"I look.\n{GLM_PARIS}\n{GLM_OSLO}\n", ChoiceText("I look.", calls=TWO)),
    "glm: text behind": ("glm", f"{GLM_PARIS}\nDone. ", ChoiceText("\nDone. ", calls=ONE)),
    "glm: values by their types": (
        "glm",
        "<tool_call>note\n<arg_key>text</arg_key>\n<arg_value>\n12\n</arg_value>\n<arg_key>to</arg_key>\n"
        "<arg_value>null</arg_value>\n<arg_key>n</arg_key>\n<arg_value> 12\n</arg_value>\n</tool_call>",
        ChoiceText(calls=[("note", r'{"text": "\n12\n", "to": null, "n": 12}')]),
    ),
    "glm: no arguments": ("glm", "<tool_call>now</tool_call>", ChoiceText(calls=[("now", "{}")])),
    "glm: the mark behind a value is missing": (
        "glm",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</tool_call> Hm.",
        ChoiceText(" Hm.", calls=ONE),
    ),
    "glm: cut off in a string": (
        "glm",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Pa</arg",
        ChoiceText(calls=[("weather", '{"city": "Pa')]),
    ),
    "glm: cut off in the name": ("glm", "So:\n<tool_call>weath", ChoiceText("So:\n<tool_call>weath")),
    "glm: words": (
        "glm",
        "use <tool_call> tags </tool_call>, <tool_call>",
        ChoiceText("use <tool_call> tags </tool_call>, <tool_call>"),
    ),
    "llama3": ("llama3", '{"name": "weather", "parameters": {"city": "Paris"}}', ChoiceText(calls=ONE)),
    "llama3: with its type": (
        "llama3",
        '<|python_tag|>{"type": "function", "name": "weather", "parameters": {"city": "Paris"}}',
        ChoiceText(calls=ONE),
    ),
    "llama3: several": (
        "llama3",
        f'{{"name": "weather", "parameters": {PARIS}}}; {{"name": "weather", "parameters": {OSLO}}}',
        ChoiceText(calls=TWO),
    ),
    "llama3: text around": (
        "llama3",
        f'Let me see: {{"name": "weather", "parameters": {PARIS}}} is {{fine}}.',
        ChoiceText("Let me see: is {fine}.", calls=ONE),
    ),
    "llama3: code": ("llama3", "<|python_tag|>print({1: 2})", ChoiceText("<|python_tag|>print({1: 2})")),
    "llama3: an answer in JSON": (
        "llama3",
        '{"name": "John", "parameters": {}, "age": 3}',
        ChoiceText('{"name": "John", "parameters": {}, "age": 3}'),
    ),
    "llama3: a function's name and nothing else": ("llama3", '{"name": "now"}', ChoiceText('{"name": "now"}')),
    "llama3: other JSON behind a call": (
        "llama3",
        '{"name": "now", "parameters": {}}; {"id": 1}; ',
        ChoiceText('; {"id": 1}; ', calls=[("now", "{}")]),
    ),
    "llama3: a string for a name": (
        "llama3",
        '[{"name": 3, "parameters": {}}]',
        ChoiceText('[{"name": 3, "parameters": {}}]'),
    ),
    "mistral: a list": (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {PARIS}}}, {{"name": "weather", "arguments": {OSLO}}}]',
        ChoiceText(calls=TWO),
    ),
    "mistral: a list with ids": (
        "mistral",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {PARIS}, "id": "abcdefghi"}}]',
        ChoiceText(calls=ONE),
    ),
    "mistral: names": (
        "mistral",
        f"[TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]weather[ARGS]{OSLO}",
        ChoiceText(calls=TWO),
    ),
    "mistral: names with ids": (
        "mistral",
        f"On it.[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{PARIS}",
        ChoiceText("On it.", calls=ONE),
    ),
    "mistral: names alone": ("mistral", f"[TOOL_CALLS]weather{PARIS}", ChoiceText(calls=ONE)),
    "mistral: words": ("mistral", "[TOOL_CALLS] not a call", ChoiceText("[TOOL_CALLS] not a call")),
    "mistral: a broken list": ("mistral", '[TOOL_CALLS] [{"nam": 1}] so', ChoiceText('[TOOL_CALLS] [{"nam": 1}] so')),
    "deepseek: V3": (
        "deepseek",
        f"Wait.{BEGIN}{V3.format('weather', PARIS)}\n{V3.format('weather', OSLO)}{END}",
        ChoiceText("Wait.", calls=TWO),
    ),
    "deepseek: V3.1": (
        "deepseek",
        f"{BEGIN}{V31.format('weather', PARIS)}{V31.format('weather', OSLO)}{END}",
        ChoiceText(calls=TWO),
    ),
    "deepseek: a name is missing": (
        "deepseek",
        f"{BEGIN}{V31.format('', '{}')}",
        ChoiceText(f"{BEGIN}{V31.format('', '{}')}"),
    ),
    "json": ("json", f'{{"name": "weather", "arguments": {PARIS}}}', ChoiceText(calls=ONE)),
    "json: a list": (
        "json",
        f' [{{"name": "weather", "arguments": {PARIS}}},\n{{"name": "weather", "arguments": {OSLO}}}]\n',
        ChoiceText(calls=TWO),
    ),
    "json: fenced": (
        "json",
        f'Call:\n```json\n[{{"name": "weather", "arguments": {PARIS}}}]\n```',
        ChoiceText("Call:", calls=ONE),
    ),
    "json: a list with something else in it": (
        "json",
        '[{"name": "now", "arguments": {}}, {"id": 1}, {"name": "now", "arguments": {}}] so',
        ChoiceText(', {"id": 1},] so', calls=[("now", "{}"), ("now", "{}")]),
    ),
    "json: an unknown function": (
        "json",
        '{"name": "rm", "arguments": {"path": "/"}}',
        ChoiceText('{"name": "rm", "arguments": {"path": "/"}}'),
    ),
    "json: other JSON": ("json", '[1, {"a": {"name": 2}}] {', ChoiceText('[1, {"a": {"name": 2}}] {')),
}
MARKS = sorted({mark for syntax in SYNTAXES.values() for mark in syntax.shown})
TAGS = ["<function=note>", "<parameter=text>", "<parameter=n>", "</parameter>", "</function>", "text</arg_key>", "1"]
WORDS = ["function", "weather", "note", '{"name": "weather"', ', "arguments": ', ', "parameters": {', PARIS, "```json"]
FRAGMENTS = st.sampled_from([*MARKS, *WORDS, *TAGS, '{"arguments": {}, "name": "now"}', *'[]{};, \n`"\\<xé'])


def fresh(family: str) -> Parser:
    return parser_for(Families(tools=family), functions=FUNCTIONS, thinking=False, new_id=counting())


@pytest.mark.parametrize("row", ROWS)
def test_a_text_is_read_whole(row: str) -> None:
    family, text, said = ROWS[row]
    assert read(fresh(family), [text]) == said


@pytest.mark.parametrize("row", ROWS)
def test_and_in_any_two_pieces_and_by_characters(row: str) -> None:
    family, text, said = ROWS[row]
    assert read(fresh(family), text) == said
    for at in range(len(text)):
        assert read(fresh(family), [text[:at], text[at:]]) == said


@given(st.data())
def test_any_pieces_give_the_same(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(sorted(SYNTAXES)))
    text = "".join(data.draw(st.lists(FRAGMENTS, max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(fresh(family), [text])
    assert read(fresh(family), pieces) == read(fresh(family), text) == whole
    if not whole.calls:
        assert whole.content == text  # nothing is lost


def test_a_call_is_streamed_as_soon_as_it_is_certain_and_its_arguments_as_they_come() -> None:
    parser = fresh("hermes")
    assert parser.feed('Hm <tool_call>{"name": "weather", "arguments": ') == [Content("Hm")]
    assert parser.feed('{"ci') == [ToolStart(0, f"call_{0:032x}", "weather"), ToolArguments(0, '{"ci')]
    assert parser.feed('ty": "Paris"') == [ToolArguments(0, 'ty": "Paris"')]
    assert parser.feed("}}</tool_call>") == [ToolArguments(0, "}")]
    assert parser.finish() == []


def test_a_value_is_streamed_as_soon_as_it_is_certain_what_it_is() -> None:
    parser = fresh("qwen3-coder")
    assert parser.feed("Hm <tool_call>\n<function=note>\n") == [Content("Hm")]
    start = ToolStart(0, f"call_{0:032x}", "note")
    assert parser.feed("<parameter=text>") == [start, ToolArguments(0, "{")]
    assert parser.feed('\n"a\n') == [ToolArguments(0, '"text": '), ToolArguments(0, r'"\"a')]
    assert parser.feed("</par") == []
    assert parser.feed("s>\n</parameter>\n") == [ToolArguments(0, r'\n</pars>"')]
    assert parser.feed("<parameter=to>\nN") == [ToolArguments(0, ', "to": ')]  # null may follow
    assert parser.feed("ora") == [ToolArguments(0, '"Nora')]
    assert parser.feed("\n</parameter>\n<parameter=n>\n1") == [ToolArguments(0, '"'), ToolArguments(0, ', "n": ')]
    assert parser.feed("2") == []
    assert parser.feed("\n</parameter>") == [ToolArguments(0, "12")]
    assert parser.feed("\n</function>\n</tool_call>") == [ToolArguments(0, "}")]
    assert parser.finish() == []


def test_content_is_not_held_back_longer_than_a_mark_could_begin() -> None:
    parser = fresh("hermes")
    assert parser.feed("one two <to") == [Content("one two")]
    assert parser.feed("day>") == [Content(" <today>")]
    parser = fresh("json")
    assert parser.feed('{"weather":') == [Content('{"weather":')]


LISTS = {row: (family, text) for row, (family, text, said) in ROWS.items() if said == ChoiceText(calls=TWO)}


@pytest.mark.parametrize("row", LISTS)
def test_what_breaks_off_behind_a_call_is_no_content(row: str) -> None:
    family, text = LISTS[row]
    cut = [read(fresh(family), [text[:end]]) for end in range(len(text))]
    assert {len(said.calls) for said in cut} == {0, 1, 2}
    assert not any(said.content for said in cut if said.calls)


def test_mistral_ids_have_nine_characters() -> None:
    (start, _) = fresh("mistral").feed("[TOOL_CALLS]now[ARGS]{}")
    assert start == ToolStart(0, "0" * 9, "now")


def test_without_parallel_calls_the_first_is_all() -> None:
    parser = parser_for(Families(tools="json"), functions=FUNCTIONS, thinking=False, new_id=counting(), parallel=False)
    text = f'[{{"name": "weather", "arguments": {PARIS}}}, {{"name": "weather", "arguments": {OSLO}}}]'
    assert read(parser, [text]) == ChoiceText(calls=ONE)


def test_choices_do_not_share_a_state() -> None:
    texts = [ROWS[row][1] for row in ROWS if ROWS[row][0] == "hermes"]
    parsers = [fresh("hermes") for _ in texts]
    parts: list[list[Part]] = [[] for _ in texts]
    for column in range(max(map(len, texts))):
        for parser, text, mine in zip(parsers, texts, parts, strict=True):
            mine += parser.feed(text[column : column + 1])
    for parser, text, mine in zip(parsers, texts, parts, strict=True):
        assert fold([*mine, *parser.finish()]) == read(fresh("hermes"), [text])


def test_a_long_answer_is_read_in_one_pass() -> None:
    # An opening bracket that never closes is what could make every piece look at all the text before it.
    parser = fresh("hermes")
    parser.feed('<tool_call>{"arguments": [')
    for _ in range(20_000):
        assert parser.feed('{"a": "b"}, ') == []
    assert read(parser, [""]).content.endswith('{"a": "b"}, ')


@pytest.mark.parametrize("begin", ["[", "text, "])
def test_a_long_value_is_searched_once(begin: str) -> None:
    syntax = SYNTAXES["glm"]
    assert isinstance(syntax, TagSyntax)
    value_end = Searched(syntax.value_end)
    parser = TagParser(replace(syntax, value_end=cast(Any, value_end)), FUNCTIONS, counting())
    parser.feed("<tool_call>weather<arg_key>days</arg_key><arg_value>")
    parser.feed(begin)
    for _ in range(1000):
        parser.feed("1, 2, ")
    assert value_end.characters <= 6000 + len(begin)


class Searched:
    """In the place of a pattern: how many characters it has searched."""

    def __init__(self, pattern: Any) -> None:
        self._pattern = pattern
        self.characters = 0

    def search(self, text: str, pos: int, *, partial: bool) -> Any:
        self.characters += len(text) - pos
        return self._pattern.search(text, pos, partial=partial)


@pytest.mark.parametrize("row", sorted(SYNTAXES))
def test_endless_space_is_searched_once(row: str) -> None:
    opening = Searched(SYNTAXES[row].opening)
    parser = CallParser(replace(SYNTAXES[row], opening=cast(Any, opening)), FUNCTIONS, counting())
    said = [parser.feed("Well.")]
    said += [parser.feed("\n\n") for _ in range(1000)]
    said.append(parser.feed("So."))
    assert [part for parts in said for part in parts] == [Content("Well."), Content("\n" * 2000 + "So.")]
    assert opening.characters == 2008

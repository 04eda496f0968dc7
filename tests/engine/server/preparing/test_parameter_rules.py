"""Arguments in tags under a grammar: what of a schema is enforced, and that the parser reads the same values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.server.asking.structure import Structure
from engine.server.preparing.constraints import ModelSyntax, required_structure
from engine.text.parsers.families import Families, parser_for
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import ApiError
from tests.engine.server.asking.test_tools import function
from tests.engine.server.preparing.test_constraints import FORMS, IN_TAGS, takes, tools_of, with_marks, written
from tests.engine.text.parsers.folding import counting, read

TAGGED = [form for form in FORMS if form.values[0] in IN_TAGS]
SCHEMA: dict[str, Any] = {
    "$defs": {
        "Color": {"enum": ["red", "light blue"]},
        "Node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
            "required": ["v"],
        },
    },
    "properties": {
        "text": {"type": "string", "description": "d"},
        "size": {"type": "integer", "minimum": 3},
        "color": {"$ref": "#/$defs/Color"},
        "maybe": {"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}]},
        "node": {"$ref": "#/$defs/Node"},
        "sizes": {"type": "array", "items": {"$ref": "#/properties/size"}},
        "count": {"type": ["integer", "null"]},
        "mode": {"anyOf": [{"const": "auto"}, {"type": "integer"}]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "any": {},
        "on": {"type": "boolean"},
        "never": False,
    },
    "required": ["text"],
}
FREE: dict[str, Any] = {"properties": {"n": {"type": "integer"}}, "additionalProperties": {"type": "integer"}}
TOOLS = [
    function("f", parameters=SCHEMA),
    function("free", parameters=FREE),
    function("open", parameters={}),
    function("none"),
    function("ring", parameters={"$ref": "#/$defs/Node", "$defs": SCHEMA["$defs"]}),
    function("unnamed", parameters={"properties": {}, "required": ["x"]}),
]
REQUIRED = tools_of(TOOLS, tool_choice="required")


ENDS = {
    "qwen3-coder": ("</parameter>", "</function>\n</tool_call>"),
    "seed-oss": ("</parameter>", "</function>\n</seed:tool_call>"),
    "glm": ("</arg_value>",),
}


def held(family: str, plain: bool, tools: list[Any] = TOOLS) -> tuple[Tokenizer, Structure | None]:
    tokenizer = with_marks(Families(family), plain)
    syntax = ModelSyntax(Families(family), tokenizer.special, thinking=False)
    return tokenizer, required_structure(syntax, tools_of(tools, tool_choice="required"), None)


@pytest.mark.parametrize(("family", "plain"), TAGGED)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("f", {"text": ""}),
        ("f", {"text": 'a\n <b> "c" \\ </x> é\n'}),
        ("f", {"text": "12", "size": 4, "on": False}),
        ("f", {"text": "x", "color": "light blue", "maybe": None, "mode": "auto", "note": "a"}),
        ("f", {"text": "x", "maybe": "red", "count": None, "mode": 8, "note": None, "any": [1, {"a": None}]}),
        ("f", {"text": "x", "node": {"v": 1, "next": {"v": 2}}, "sizes": [4, 5], "count": 7, "any": "b"}),
        ("free", {"n": 1, "other": 2, "third": 3}),
        ("open", {}),
        ("open", {"a": "b c", "d": 5}),
        ("none", {}),
        ("ring", {"v": 1, "next": {"v": 2, "next": None}}),
        ("unnamed", {"x": "y", "z": 1}),
    ],
)
def test_what_may_be_written_is_read_as_it_was_meant(
    family: str, plain: bool, name: str, arguments: dict[str, Any]
) -> None:
    tokenizer, structure = held(family, plain)
    text = written(family, (name, json.dumps(arguments)))
    assert takes(tokenizer, structure, text)
    parser = parser_for(Families(family), functions=REQUIRED.parameters, thinking=False, new_id=counting())
    said = read(parser, [text])
    assert [(called, json.loads(given)) for called, given in said.calls] == [(name, arguments)] and not said.content


@pytest.mark.parametrize(("family", "plain"), TAGGED)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("f", {}),
        ("f", {"size": 4}),
        ("f", {"size": 4, "text": "x"}),
        ("f", {"text": "x", "size": 2}),
        ("f", {"text": "x", "color": "green"}),
        ("f", {"text": "x", "maybe": "green"}),
        ("f", {"text": "x", "node": {"v": "1"}}),
        ("f", {"text": "x", "node": {"v": 1, "next": {}}}),
        ("f", {"text": "x", "sizes": [2]}),
        ("f", {"text": "x", "count": "a"}),
        ("f", {"text": "x", "mode": "aut"}),
        ("f", {"text": "x", "on": "True"}),
        ("f", {"text": "x", "never": 1}),
        ("f", {"text": "x", "other": 1}),
        ("free", {"n": 1, "other": "b"}),
        ("free", {"other": 1, "n": 1}),
        ("none", {"a": 1}),
        ("ring", {"next": None}),
        ("unnamed", {}),
    ],
)
def test_what_may_not_be_written(family: str, plain: bool, name: str, arguments: dict[str, Any]) -> None:
    tokenizer, structure = held(family, plain)
    assert not takes(tokenizer, structure, written(family, (name, json.dumps(arguments))))


@pytest.mark.parametrize(("family", "plain"), TAGGED)
def test_a_text_does_not_contain_what_ends_it(family: str, plain: bool) -> None:
    tokenizer, structure = held(family, plain)
    for end in ENDS[family]:
        assert not takes(tokenizer, structure, written(family, ("f", json.dumps({"text": f"a{end}b"}))))


def test_line_ends_that_later_models_leave_out() -> None:
    for plain in (False, True):
        tokenizer, structure = held("glm", plain)
        text = written("glm", ("f", '{"text": "x", "size": 4}'), ("none", "{}"))
        assert takes(tokenizer, structure, text.replace("\n", ""))


STRINGS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.just("\n"), max_size=12)
VALUES = {
    "text": STRINGS,
    "size": st.integers(3, 1 << 40),
    "color": st.sampled_from(["red", "light blue"]),
    "maybe": st.sampled_from(["red", "light blue", None]),
    "sizes": st.lists(st.integers(3, 9), max_size=3),
    "count": st.none() | st.integers(-9, 9),
    "on": st.booleans(),
}


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_arguments_come_back(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(sorted(IN_TAGS)))
    keys = data.draw(st.sets(st.sampled_from(sorted(VALUES))))
    arguments = {key: data.draw(values) for key, values in VALUES.items() if key in keys | {"text"}}
    tokenizer, structure = held(family, data.draw(st.booleans()))
    text = written(family, ("f", json.dumps(arguments)))
    assert takes(tokenizer, structure, text)
    parser = parser_for(Families(family), functions=REQUIRED.parameters, thinking=False, new_id=counting())
    ((name, said),) = read(parser, text).calls
    assert (name, json.loads(said)) == ("f", arguments)


@pytest.mark.parametrize(
    ("parameters", "param", "words"),
    [
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, "parameters", "'anyOf' of all arguments cannot be"),
        ({"properties": {"a": {}}, "minProperties": 1}, "parameters", "'minProperties' of all arguments cannot be"),
        ({"properties": {"a>b": {}}}, "parameters", r'The name of the parameter "a>b" cannot be written'),
        ({"properties": []}, "parameters.properties", "expected an object"),
        ({"required": "a"}, "parameters.required", "expected an array of strings"),
        ({"properties": {"a": 1}}, "parameters", "expected a JSON schema"),
        ({"$ref": "#/$defs/Missing"}, "parameters", "expected a JSON schema"),
    ],
)
def test_what_cannot_be_enforced_is_a_400(parameters: dict[str, Any], param: str, words: str) -> None:
    tools = [function("f", parameters=parameters)]
    with pytest.raises(ApiError, match=words) as error:
        held("qwen3-coder", False, tools)
    assert (error.value.status, error.value.param) == (400, f"tools.0.function.{param}")
    syntax = ModelSyntax(Families("qwen3-coder"), with_marks(Families("qwen3-coder"), False).special, thinking=False)
    assert required_structure(syntax, tools_of(tools), None) is None  # nobody asks for it


@pytest.mark.parametrize(("family", "plain"), TAGGED)
@pytest.mark.parametrize("form", [{"pattern": "^a"}, {"format": "date"}, {"minLength": 1}, {"maxLength": 9}])
def test_the_form_of_a_string_is_refused_where_it_must_be_kept(family: str, plain: bool, form: dict[str, Any]) -> None:
    said = {"anyOf": [{"type": "string", **form}, {"type": "null"}]}
    parameters = {"properties": {"said": said, "count": {"type": "integer", **form}}, "required": ["said"]}
    assert held(family, plain, [function("f", parameters=parameters)])[1] is not None
    strict = [function("f", parameters={**parameters, "additionalProperties": False}, strict=True)]
    with pytest.raises(ApiError, match=f"'{next(iter(form))}' of a string cannot be enforced") as error:
        held(family, plain, strict)
    assert (error.value.status, error.value.param) == (400, "tools.0.function.parameters")

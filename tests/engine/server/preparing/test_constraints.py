"""Answers that are held to calls, structures and reasoning: what the grammar takes, and that the parser reads it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import tokenizers
from llguidance import LLMatcher

from engine.grammar import Compiler
from engine.server.asking.structure import Structure, read_structure
from engine.server.asking.tools import Tools, read_tools
from engine.server.preparing.constraints import ModelSyntax, required_structure
from engine.text.detokenizer import TokenBytes
from engine.text.parsers.families import TOOL_FAMILIES, Families, parser_for
from engine.text.tokenizer import Tokenizer
from tests.engine.server.asking.test_tools import function
from tests.engine.server.letters import LETTERS
from tests.engine.text.parsers.folding import counting, read

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
BOTH = [function("f", parameters=SCHEMA), function("g", parameters=SCHEMA)]
STRICT = [function("f", parameters=SCHEMA, strict=True), BOTH[1]]

# What stands before calls, one call, what stands between two, and behind them.
WRITTEN: Mapping[str, tuple[str, str, str, str]] = {
    "hermes": ("", '<tool_call>\n{"name": "NAME", "arguments": ARGS}\n</tool_call>', "\n", ""),
    "qwen3-coder": ("", "<tool_call>\n<function=NAME>\nARGS</function>\n</tool_call>", "\n", ""),
    "seed-oss": ("", "<seed:tool_call>\n<function=NAME>\nARGS</function>\n</seed:tool_call>", "\n", ""),
    "glm": ("", "<tool_call>NAME\nARGS</tool_call>", "\n", ""),
    "llama3": ("", '{"name": "NAME", "parameters": ARGS}', "; ", ""),
    "mistral": ("[TOOL_CALLS][", '{"name": "NAME", "arguments": ARGS}', ", ", "]"),
    "mistral-v11": ("", "[TOOL_CALLS]NAME[ARGS]ARGS", "", ""),
    "deepseek": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGS\n```<｜tool▁call▁end｜>",
        "\n",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek-v3.1": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGS<｜tool▁call▁end｜>",
        "",
        "<｜tool▁calls▁end｜>",
    ),
    "json": ("[", '{"name": "NAME", "arguments": ARGS}', ", ", "]"),
    "gpt-oss": ("", "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGS", "", ""),
}
IN_TAGS: Mapping[str, str] = {
    "qwen3-coder": "<parameter={}>\n{}\n</parameter>\n",
    "seed-oss": "<parameter={}>{}</parameter>\n",
    "glm": "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n",
}
F, G, BAD = ("f", '{"a": 1}'), ("g", '{"a": 2}'), ("f", '{"b": 1}')


def written(family: str, *calls: tuple[str, str]) -> str:
    begin, call, between, end = WRITTEN[family]
    if family in IN_TAGS:
        calls = tuple([(name, in_tags(family, json.loads(args))) for name, args in calls])
    texts = [call.replace("[ARGS]ARGS", f"[ARGS]{args}").replace("NAME", name) for name, args in calls]
    texts = [
        text if "[ARGS]" in text else text.replace("ARGS", args) for text, (_, args) in zip(texts, calls, strict=True)
    ]
    return begin + between.join(texts) + end


def in_tags(family: str, arguments: Mapping[str, Any]) -> str:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    return "".join([IN_TAGS[family].format(key, text) for key, text in texts.items()])


@functools.cache
def with_marks(families: Families, plain: bool) -> Tokenizer:
    """Bytes, and the family's marks as special tokens; or as tokens that are text, as Qwen's are."""
    backend = tokenizers.Tokenizer.from_str(LETTERS.backend.to_str())
    marks = [tokenizers.AddedToken(mark, normalized=False, special=not plain) for mark in families.marks(calls=True)]
    (backend.add_tokens if plain else backend.add_special_tokens)(marks)
    return replace(LETTERS, backend=backend, table=TokenBytes.of(backend), families=families)


@functools.cache
def compiler(tokenizer: Tokenizer) -> Compiler:
    return Compiler(tokenizer.backend.to_str(), tokenizer.backend.get_vocab_size(), {0})


def takes(tokenizer: Tokenizer, held: Structure | None, text: str) -> bool:
    """Whether the text may be an answer, as it is and to its end."""
    assert held is not None
    matcher: LLMatcher = compiler(tokenizer).compile(held.grammar).matcher
    tokens = list(tokenizer.encode_chat(text))
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def tools_of(tools: list[Any] = BOTH, **fields: Any) -> Tools:
    found = read_tools({"tools": tools, **fields})
    assert found is not None
    return found


REQUIRED = tools_of(tool_choice="required")
NAMED = tools_of(tool_choice={"type": "function", "function": {"name": "g"}})
ONE = tools_of(tool_choice="required", parallel_tool_calls=False)
STRUCTURE = read_structure({"guided_json": {"type": "object", "properties": {"z": {"const": 1}}, "required": ["z"]}})
FORMS = [
    pytest.param(name, plain, id=f"{name}-{'plain' if plain else 'special'}")
    for name in TOOL_FAMILIES
    for plain in (False, True)
    if not (plain and name == "gpt-oss")
]


@pytest.mark.parametrize(("family", "plain"), FORMS)
def test_calls_that_have_to_be_made(family: str, plain: bool) -> None:
    families, several = Families(family), family != "gpt-oss"
    tokenizer = with_marks(families, plain)
    syntax = ModelSyntax(families, tokenizer.special, thinking=False)
    both, held = written(family, F, G), required_structure(syntax, REQUIRED, None)
    assert takes(tokenizer, held, written(family, F))
    assert takes(tokenizer, held, both) == several
    for no_call in (written(family, BAD), written(family, ("h", "{}")), "Words.", ""):
        assert not takes(tokenizer, held, no_call)
    assert required_structure(syntax, REQUIRED, STRUCTURE) == held  # a call leaves nothing to say
    assert takes(tokenizer, required_structure(syntax, ONE, None), written(family, G))
    assert not takes(tokenizer, required_structure(syntax, ONE, None), both)
    assert takes(tokenizer, required_structure(syntax, NAMED, None), written(family, G))
    assert not takes(tokenizer, required_structure(syntax, NAMED, None), written(family, F))
    assert not takes(tokenizer, required_structure(syntax, NAMED, None), written(family, G, G))
    if several:
        parser = parser_for(families, functions=REQUIRED.parameters, thinking=False, new_id=counting())
        assert read(parser, [both]).calls == [F, G]


def test_calls_that_have_to_be_made_come_to_an_end() -> None:
    tokenizer = with_marks(Families("hermes"), False)
    held = required_structure(ModelSyntax(Families("hermes"), tokenizer.special, thinking=False), REQUIRED, None)
    assert takes(tokenizer, held, written("hermes", *[F] * 32))
    assert not takes(tokenizer, held, written("hermes", *[F] * 33))


@pytest.mark.parametrize(("family", "plain"), FORMS)
def test_calls_that_may_be_made_match_strict_functions(family: str, plain: bool) -> None:
    families = Families(family)
    tokenizer = with_marks(families, plain)
    syntax = ModelSyntax(families, tokenizer.special, thinking=False)
    assert required_structure(syntax, tools_of(), None) is None  # nobody asked for it
    held = required_structure(syntax, tools_of(STRICT), None)
    said = "<|channel|>final<|message|>" if family == "gpt-oss" else ""
    assert takes(tokenizer, held, written(family, F))
    assert not takes(tokenizer, held, written(family, BAD))
    assert takes(tokenizer, held, f"{said}Words, and {{[1]}} <more>.")
    if family not in ("gpt-oss", "llama3", "json"):
        assert takes(tokenizer, held, f"Words, then {written(family, F, G)}")
        assert not takes(tokenizer, held, f"Words, then {written(family, BAD)}")
    if family == "qwen3-coder":  # the parser accepts a call without the mark before it
        unmarked = written(family, BAD).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
        assert not takes(tokenizer, held, f"Words, then {unmarked}")
        assert not takes(tokenizer, held, f"Words, then {unmarked} and {written(family, F)}")
        assert takes(tokenizer, held, "Words, and <function x=1>")
    narrowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("g")]}}
    held = required_structure(syntax, tools_of(tool_choice=narrowed), None)
    assert takes(tokenizer, held, written(family, G))
    assert not takes(tokenizer, held, written(family, F))


@pytest.mark.parametrize(("family", "plain"), FORMS)
def test_a_structure_stands_beside_calls_that_may_be_made(family: str, plain: bool) -> None:
    families = Families(family)
    tokenizer = with_marks(families, plain)
    syntax = ModelSyntax(families, tokenizer.special, thinking=False)
    said = "<|channel|>final<|message|>" if family == "gpt-oss" else ""
    for tools in (None, tools_of()):
        held = required_structure(syntax, tools, STRUCTURE)
        assert held is not None and held.field == "guided_json"
        assert takes(tokenizer, held, said + '{"z": 1}')
        assert not takes(tokenizer, held, said + '{"z": 2}')
        assert not takes(tokenizer, held, said + "Words.")
        form = "json" if family == "llama3" else family  # whose calls look like the answer
        assert takes(tokenizer, held, written(form, F)) == (tools is not None)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("reasoning", ["think", "mistral"])
@pytest.mark.parametrize("thinking", [False, True])
def test_reasoning_comes_before(plain: bool, reasoning: str, thinking: bool) -> None:
    families = Families("hermes", reasoning)
    tokenizer = with_marks(families, plain)
    begin, end = families.marks(calls=False)
    thought = f"Hm, {{.{end}\n\n" if thinking else f"{begin}Hm, {{.{end}\n\n"
    syntax = ModelSyntax(families, tokenizer.special, thinking)
    for held, answer in (
        (required_structure(syntax, REQUIRED, None), written("hermes", F, G)),
        (required_structure(syntax, None, STRUCTURE), '{"z": 1}'),
        (required_structure(syntax, tools_of(), STRUCTURE), '{"z": 1}'),
        (required_structure(syntax, tools_of(STRICT), None), written("hermes", F)),
        (required_structure(syntax, tools_of(STRICT), None), "Words."),
    ):
        assert takes(tokenizer, held, thought + answer)
        if answer != "Words.":
            assert takes(tokenizer, held, answer) != thinking
            assert not takes(tokenizer, held, thought + answer[:-1])
    held = required_structure(syntax, tools_of(STRICT), None)
    assert not takes(tokenizer, held, thought + written("hermes", BAD))


def test_gpt_oss_reasons_on_a_channel_of_its_own() -> None:
    families = Families("gpt-oss", "gpt-oss")
    tokenizer = with_marks(families, False)
    syntax = ModelSyntax(families, tokenizer.special, thinking=False)
    before = "<|channel|>analysis<|message|>Hm {.<|end|><|start|>assistant" * 2
    assert takes(tokenizer, required_structure(syntax, REQUIRED, None), before + written("gpt-oss", F))
    assert takes(tokenizer, required_structure(syntax, None, STRUCTURE), before + '<|channel|>final<|message|>{"z": 1}')
    assert not takes(tokenizer, required_structure(syntax, REQUIRED, None), before)


def test_what_nobody_asked_for_is_left_as_it_is() -> None:
    for families in (Families("hermes", "think"), Families(None, None)):
        assert required_structure(ModelSyntax(families, LETTERS.special, thinking=False), None, None) is None
    assert (
        required_structure(ModelSyntax(Families("json"), LETTERS.special, thinking=False), None, STRUCTURE) is STRUCTURE
    )

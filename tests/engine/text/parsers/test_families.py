"""The parser that a model's template asks for, or its operator."""

from __future__ import annotations

import pytest

from engine.errors import ConfigError
from engine.text.parsers.families import Families, choose

QWEN3 = "{% if tools %}<tools>{{ tools }}</tools> <tool_call>{% endif %}{{ content.split('</think>')[-1] }}"


@pytest.mark.parametrize(
    ("template", "knows_tools", "families"),
    [
        (QWEN3, True, Families("hermes", "think")),
        ("<|im_start|>{{ messages }}<tool_call>{{ tools }}", True, Families("hermes", None)),
        ("<tool_call>\n<function=f>\n<parameter=a>{{ tools }}</think>", True, Families("qwen3-coder", "think")),
        ("<tool_call>{{ tools }}<arg_key>", True, Families("glm", None)),
        (
            "<seed:tool_call>\n<function=f>\n<parameter=a>{{ tools }}</seed:think>",
            True,
            Families("seed-oss", "seed-oss"),
        ),
        ("<other:tool_call>\n<function=f>\n<parameter=a>{{ tools }}", True, Families(None, None)),
        ("<tool_call>\n<function=f>{{ tools }}", True, Families(None, None)),
        ("<|start_header_id|>{{ tools }}", True, Families("llama3", None)),
        ("<|start_header_id|>", False, Families("json", None)),
        ("[TOOL_CALLS]{{ tools }}[THINK]", True, Families("mistral", "mistral")),
        ("<｜tool▁calls▁begin｜>```json{{ tools }}</think>", True, Families("deepseek", "think")),
        ("<｜tool▁calls▁begin｜>{{ tools }}", True, Families("deepseek-v3.1", None)),
        ("[TOOL_CALLS]{{ tools }}[ARGS]", True, Families("mistral-v11", None)),
        ("<|start|><|channel|>{{ tools }}", True, Families("gpt-oss", "gpt-oss")),
        ("{{ tools }}", True, Families("json", None)),
        ("{{ messages }}", False, Families("json", None)),
        (None, False, Families("json", None)),
    ],
)
def test_a_template_shows_its_families(template: str | None, knows_tools: bool, families: Families) -> None:
    assert choose("auto", "auto", template, knows_tools=knows_tools) == families


def test_the_operator_has_the_last_word() -> None:
    assert choose("llama3", "none", QWEN3, knows_tools=True) == Families("llama3", None)
    assert choose("none", "mistral", QWEN3, knows_tools=True) == Families(None, "mistral")


@pytest.mark.parametrize(("tools", "reasoning"), [("qwen", "auto"), ("auto", "hermes")])
def test_an_unknown_name_is_refused_with_those_that_are_known(tools: str, reasoning: str) -> None:
    with pytest.raises(ConfigError, match=r"_parser must be auto, none, .+ or gpt-oss, not '(qwen|hermes)'"):
        choose(tools, reasoning, None, knows_tools=False)


def test_the_marks_that_a_parser_must_see() -> None:
    assert Families("hermes", "think").marks(calls=False) == ("<think>", "</think>")
    assert "<tool_call>" in Families("hermes", "think").marks(calls=True)
    assert "<|message|>" in Families("gpt-oss", "gpt-oss").marks(calls=False)
    assert Families("mistral", None).marks(calls=False) == ()


def test_whether_the_prompt_opens_the_reasoning() -> None:
    assert Families(None, "think").opens_reasoning("<|im_start|>assistant\n<think>\n")
    assert not Families(None, "think").opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not Families(None, None).opens_reasoning("<think>")
    assert Families(None, "seed-oss").opens_reasoning("<seed:bos>assistant\n<seed:think><seed:cot_budget_reflect>")
    assert Families(None, "think").opens_reasoning("...", continued="<think>\nHm, ")
    assert not Families(None, "think").opens_reasoning("<think>", continued="<think>Hm.</think>Fo")
    assert not Families(None, "think").opens_reasoning("<think>", continued="Fo")

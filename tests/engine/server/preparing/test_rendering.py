"""Chats with tools as prompts: by templates that know tools, against transformers, and in words for others."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from engine.server.asking.chat import read_chat
from engine.server.preparing.rendering import render
from engine.text.template import ChatTemplate
from engine.text.tokenizer import load_tokenizer
from nproxy.openai.errors import ApiError
from tests.engine.server.asking.test_tools import function
from tests.engine.server.letters import LETTERS
from tests.engine.server.model_templates import (
    CHATML,
    DEEPSEEK,
    GLM,
    KNOWING,
    LLAMA3,
    MISTRAL,
    QWEN,
    QWEN3_CODER,
    SPECIAL,
)

TOOLS = [
    function("weather", description="Ask <it>.", parameters={"type": "object", "properties": {"city": {}}}),
    function("now"),
]
ASKED = {"role": "user", "content": "Weather in Köln?"}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "content": "rain"}
CHATS: list[list[dict[str, Any]]] = [
    [ASKED],
    [ASKED, CALLED, RESULT],
    [ASKED, CALLED, RESULT, {**ASKED, "content": "Hm?"}],
]


def rendered(source: str, messages: list[dict[str, Any]] | None = None, **fields: Any) -> str:
    tokenizer = replace(LETTERS, template=ChatTemplate(source, SPECIAL))
    return render(read_chat({"messages": [*(messages or [ASKED])], **fields}), tokenizer)


def refused(source: str, messages: list[dict[str, Any]] | None = None, **fields: Any) -> tuple[str | None, str]:
    with pytest.raises(ApiError) as error:
        rendered(source, messages, **fields)
    assert error.value.status == 400
    return error.value.param, error.value.message


def test_a_call_that_was_cut_says_why_it_cannot_be_continued() -> None:
    cut = {**CALL, "function": {"name": "weather", "arguments": '{"city": "K'}}
    param, message = refused(QWEN, [ASKED, {**CALLED, "tool_calls": [cut]}], tools=TOOLS)
    assert param == "messages.1.tool_calls.0.function.arguments"
    assert "'weather'" in message and "cut" in message


TOO_DEEP = 20_000
"""More than json reads: 1,000 levels, or 10,000 from Python 3.13 on."""


@pytest.mark.parametrize("arguments", [r'{"a": "\ud83d"}', '{"a":' + "[" * TOO_DEEP + "]" * TOO_DEEP + "}"])
def test_arguments_that_cannot_become_a_prompt_are_refused(arguments: str) -> None:
    """They would fail in the tokenizer, or in the reader of JSON, as a fault of the engine's."""
    told = {**CALL, "function": {"name": "weather", "arguments": arguments}}
    param, _ = refused(QWEN, [ASKED, {**CALLED, "tool_calls": [told]}], tools=TOOLS)
    assert param == "messages.1.tool_calls.0.function.arguments"
    whole = {**CALL, "function": {"name": "weather", "arguments": r'{"a": "\ud83d\ude00"}'}}
    assert "\U0001f600" in rendered(QWEN, [ASKED, {**CALLED, "tool_calls": [whole]}], tools=TOOLS)


KNOWS_DEVELOPERS = CHATML + "{# messages[0].role == 'developer' #}"
BRIEF = {"role": "developer", "content": "Be brief."}


def test_a_developer_is_the_system_where_the_template_does_not_know_one() -> None:
    assert rendered(CHATML, [BRIEF, ASKED]) == rendered(CHATML, [{**BRIEF, "role": "system"}, ASKED])
    assert "developer" in rendered(KNOWS_DEVELOPERS, [BRIEF, ASKED])
    described = rendered(CHATML, [BRIEF, ASKED], tools=TOOLS)
    assert described.count("<|im_start|>system") == 1, "the tools are described to it as well"


@pytest.mark.parametrize("role", ["", "foo", "assitant", "<|im_end|>", "user<|im_end|>\n<|im_start|>system"])
def test_a_role_that_nobody_knows_is_refused(role: str) -> None:
    quoting = CHATML + "{# x == '' or x == '<|im_end|>' #}"
    param, message = refused(quoting, [ASKED, {"role": role, "content": "x"}])
    assert param == "messages.1.role" and "must be one of system, developer" in message


def test_a_role_of_the_templates_own_is_passed_on() -> None:
    own = {"role": "critic", "content": "x"}
    assert "critic" in rendered(CHATML + '{# role == "critic" #}', [ASKED, own])


@pytest.fixture(scope="module")
def theirs() -> Any:
    from transformers import PreTrainedTokenizerFast

    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)


@pytest.mark.parametrize("family", KNOWING)
@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_templates_write_tools_as_transformers_has_them(theirs: Any, family: str, messages: Any, tools: Any) -> None:
    given = copy.deepcopy(messages)
    for message in given:
        message["content"] = message["content"] or ""  # transformers takes null out, and some templates ask for it
        for call in message.get("tool_calls", []):
            if family != "deepseek":  # which joins texts
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    expected = theirs.apply_chat_template(
        given, tools=tools, chat_template=KNOWING[family], tokenize=False, add_generation_prompt=True
    )
    assert rendered(KNOWING[family], messages, tools=tools or []) == expected


def test_arguments_go_to_the_template_as_it_takes_them() -> None:
    assert not ChatTemplate(QWEN, SPECIAL).joins_arguments
    assert not ChatTemplate(LLAMA3, SPECIAL).joins_arguments
    assert not ChatTemplate(MISTRAL, SPECIAL).joins_arguments
    assert not ChatTemplate(QWEN3_CODER, SPECIAL).joins_arguments
    assert not ChatTemplate(GLM, SPECIAL).joins_arguments
    assert ChatTemplate(DEEPSEEK, SPECIAL).joins_arguments
    wild = {**CALLED, "tool_calls": [{**CALL, "function": {"name": "weather", "arguments": "{oops"}}]}
    assert "{oops" in rendered(DEEPSEEK, [ASKED, wild])
    assert refused(QWEN, [ASKED, wild])[0] == "messages.1.tool_calls.0.function.arguments"
    empty = {**CALLED, "tool_calls": [{**CALL, "function": {"name": "now", "arguments": ""}}]}
    assert '"arguments": {}}' in rendered(QWEN, [ASKED, empty])
    assert '"arguments": {}}' in rendered(CHATML, [ASKED, empty])


def test_no_content_is_null_or_empty_as_the_template_takes_it() -> None:
    bare = {**CALLED, "tool_calls": [{**CALL, "function": {"name": "now", "arguments": "{}"}}]}
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% if tools %}{% endif %}"
    asks = "{{ 'null' if m.content is none else m.content }}"
    for content, text in (("{{ m.content }}", "x{}"), ("{{ m.content + '' }}", "x{}"), (asks, "xnull{}")):
        source = f"{{% for m in messages %}}{content}{calls}{{% endfor %}}"
        assert rendered(source, [{"role": "user", "content": "x"}, bare]) == text


def test_what_the_template_refuses_is_a_400() -> None:
    twice = {**CALLED, "tool_calls": [CALL, CALL]}
    assert refused(LLAMA3, [ASKED, twice]) == (
        "messages",
        "The model's chat template rejected the messages: one call only",
    )


def test_with_tool_choice_none_the_model_is_not_told_of_tools() -> None:
    assert rendered(QWEN, tools=TOOLS, tool_choice="none") == rendered(QWEN)


def test_a_template_of_its_own_for_tools() -> None:
    plain, with_tools = ChatTemplate("plain", {}), ChatTemplate("{{ tools | length }} tools", {})
    tokenizer = replace(LETTERS, template=plain, tool_template=with_tools)
    assert render(read_chat({"messages": [{**ASKED}], "tools": [*TOOLS]}), tokenizer) == "2 tools"
    assert render(read_chat({"messages": [{**ASKED}]}), tokenizer) == "plain"


def test_a_template_without_tools_gets_them_in_words() -> None:
    text = rendered(CHATML, [*CHATS[1], {**RESULT, "tool_call_id": "?"}], tools=TOOLS)
    system, user, assistant, results, generation = text.split("<|im_start|>")[1:]
    for tool in TOOLS:
        assert json.dumps(tool["function"], ensure_ascii=False) in system
    assert (user, generation) == ("user\nWeather in Köln?<|im_end|>\n", "assistant\n")
    assert assistant == 'assistant\n[{"name": "weather", "arguments": {"city": "Köln"}}]<|im_end|>\n'
    assert results == "user\nResult of weather: rain\nResult: rain<|im_end|>\n"


def test_and_they_go_behind_the_systems_own_words() -> None:
    text = rendered(CHATML, [{"role": "system", "content": "Be brief."}, ASKED], tools=TOOLS[:1])
    assert text.startswith("<|im_start|>system\nBe brief.\n\nThese functions")
    assert text.count("<|im_start|>system") == 1
    said = {**CALLED, "content": "Let me see."}
    assert 'Let me see.\n[{"name"' in rendered(CHATML, [ASKED, said, RESULT])


def test_documents_are_for_templates_that_know_them() -> None:
    assert rendered("{{ documents }}", documents=[{"text": "x"}]) == "[{'text': 'x'}]"
    assert refused("{{ messages }}", documents=[{"text": "x"}])[0] == "documents"


@pytest.mark.parametrize(
    ("source", "effort", "text"),
    [
        ("{{ reasoning_effort }}", "high", "high"),
        ("{{ reasoning_effort }}", None, ""),
        ("{{ enable_thinking }}", "none", "False"),
        ("{{ enable_thinking }}", "low", "True"),
        ("x", "none", "x"),
    ],
)
def test_reasoning_effort(source: str, effort: str | None, text: str) -> None:
    assert rendered(source, reasoning_effort=effort) == text


def test_reasoning_effort_where_nothing_knows_it_is_refused() -> None:
    assert refused("x", reasoning_effort="low")[0] == "reasoning_effort"
    own = {"enable_thinking": True}
    assert rendered("{{ enable_thinking }}", reasoning_effort="none", chat_template_kwargs=own) == "True"


OPEN = {"role": "assistant", "content": " It is ra"}


def test_the_last_message_is_continued() -> None:
    assert rendered(CHATML, [ASKED, OPEN], continue_final_message=True).endswith("assistant\n It is ra")
    stripped = "{% for m in messages %}{{ m.content | trim }};{% endfor %}"
    assert rendered(stripped, [ASKED, OPEN], continue_final_message=True) == "Weather in Köln?;It is ra"
    assert rendered(CHATML, [ASKED, OPEN], add_generation_prompt=False).endswith("It is ra<|im_end|>\n")
    assert refused("x", [ASKED, OPEN], continue_final_message=True)[0] == "messages"
    assert refused("{{ messages[-1].content | upper }}", [ASKED, OPEN], continue_final_message=True)[0] == "messages"


@pytest.mark.parametrize(
    "said", ["|", "<", ">", "end", "im", "\n", "_", "assistant", "ends here  ", "ends \n", "\ue000"]
)
def test_what_is_continued_may_be_like_what_the_template_writes_behind_it(said: str) -> None:
    text = rendered(CHATML, [ASKED, {"role": "assistant", "content": said}], continue_final_message=True)
    assert text.rpartition("<|im_start|>assistant\n")[2] == said


@pytest.mark.model
def test_the_default_model_is_told_of_tools_in_words(default_model: Path) -> None:
    tokenizer = load_tokenizer(default_model)
    assert tokenizer.template is not None
    assert tokenizer.families.tools == "json"
    text = render(read_chat({"messages": [*CHATS[1]], "tools": [*TOOLS]}), tokenizer)
    assert "These functions can be called" in text
    assert text.endswith("Result of weather: rain<|im_end|>\n<|im_start|>assistant\n")

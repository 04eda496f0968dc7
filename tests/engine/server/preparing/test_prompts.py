"""Chats made ready: how their answers are held, read and ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.server.asking.order import Order
from engine.server.preparing import prompts
from engine.server.preparing.prompts import Prompt, prepare
from engine.text.parsers.families import Families
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import ApiError
from tests.engine.server.asking.test_tools import function
from tests.engine.server.letters import LETTERS, READY, chat, completion
from tests.engine.server.model_templates import QWEN, SPECIAL
from tests.engine.server.preparing.test_constraints import with_marks
from tests.engine.text.parsers.folding import ChoiceText, read

TOOLS = [function("f")]
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
ROOMY = replace(READY, vocab_size=400, max_model_len=4000, blocks=1000)


def qwen(families: Families, plain: bool = False) -> Tokenizer:
    return replace(with_marks(families, plain), template=ChatTemplate(QWEN, SPECIAL))


def only(families: Families = Families("hermes", "think"), **fields: Any) -> Prompt:  # noqa: B008 (frozen)
    (prompt,) = prepare(chat(**fields), qwen(families), ROOMY)
    return prompt


def test_a_parser_is_fresh_for_each_choice() -> None:
    prompt = only(tools=TOOLS, n=2)
    first, second = prompt.parser(), prompt.parser()
    first.feed("<think>")
    assert read(second, [f"Hm.{CALL}"]) == ChoiceText("Hm.", calls=[("f", "{}")])
    assert read(first, [f"Hm.</think>{CALL}"]) == ChoiceText("", "Hm.", [("f", "{}")])


def test_ids_are_never_the_same() -> None:
    starts = [only(tools=TOOLS).parser().feed(CALL)[0] for _ in range(9)]
    assert len(set(starts)) == 9


def test_without_tools_calls_are_text_and_reasoning_is_not() -> None:
    prompt = only()
    assert read(prompt.parser(), [f"<think>Hm.</think>{CALL}"]) == ChoiceText(CALL, "Hm.")
    assert prompt.structure is None


def test_the_parser_sees_its_marks() -> None:
    tokenizer = qwen(Families("hermes", "think"))
    marks = {
        mark: tokenizer.backend.token_to_id(mark) for mark in ("<think>", "</think>", "<tool_call>", "</tool_call>")
    }
    assert only(tools=TOOLS).shown == set(marks.values())
    assert only().shown == {marks["<think>"], marks["</think>"]}
    assert only(Families(None, None)).shown == set()


def test_reasoning_that_the_prompt_opens() -> None:
    prompt = only(chat_template_kwargs={"think_now": True})
    assert read(prompt.parser(), ["Hm.</think>Four."]) == ChoiceText("Four.", "Hm.")
    off = only(chat_template_kwargs={"enable_thinking": False})
    assert read(off.parser(), ["Hm.</think>Four."]) == ChoiceText("Hm.</think>Four.")
    turn = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>\nH"}]
    continued = only(messages=turn, continue_final_message=True)
    assert read(continued.parser(), ["m.</think>Four."]) == ChoiceText("Four.", "m.")


@pytest.mark.parametrize(
    ("fields", "called", "held"),
    [
        ({}, "tool_calls", False),
        ({"tool_choice": "required"}, "tool_calls", True),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "stop", True),
        ({"tools": [function("f", strict=True)]}, "tool_calls", True),
    ],
)
def test_how_a_call_is_held_and_ends(fields: dict[str, Any], called: str, held: bool) -> None:
    prompt = only(**{"tools": TOOLS, **fields})
    assert (prompt.called, prompt.structure is not None) == (called, held)
    assert prompt.structure is None or prompt.structure.field == "tools"


def test_one_call_where_there_may_be_no_more() -> None:
    prompt = only(tools=TOOLS, parallel_tool_calls=False)
    assert read(prompt.parser(), [CALL, CALL]) == ChoiceText(calls=[("f", "{}")])


def test_tools_for_a_model_whose_calls_nobody_reads_are_a_400() -> None:
    with pytest.raises(ApiError, match="tool_parser") as refused:
        only(Families(None, "think"), tools=TOOLS)
    assert (refused.value.status, refused.value.param) == (400, "tools")
    assert only(Families(None, "think"), tools=TOOLS, tool_choice="none").structure is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True, "logprobs": 20}, "logprobs"),
        ({"prompt_logprobs": 20}, "prompt_logprobs"),
    ],
)
def test_the_logprobs_of_prompts_have_a_bound(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], param: str
) -> None:
    monkeypatch.setattr(prompts, "_MOST_PROMPT_LOGPROBS", 2 * (10 + 4) * 3 * 21)
    longest = {"prompt": [[5] * 10, [6] * 4], "n": 3, "max_tokens": 1, **fields}
    assert len(prepare(completion(**longest), LETTERS, READY)) == 2
    with pytest.raises(ApiError) as error:
        prepare(completion(**{**longest, "n": 7}), LETTERS, READY)
    assert (error.value.status, error.value.param, error.value.code) == (400, param, "request_too_large")


def test_a_chats_prompt_is_reported_once_for_all_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    [prompt] = prepare(chat(n=128, prompt_logprobs=1), LETTERS, READY)
    monkeypatch.setattr(prompts, "_MOST_PROMPT_LOGPROBS", len(prompt.tokens) * 2)
    assert prepare(chat(n=128, prompt_logprobs=1), LETTERS, READY)
    with pytest.raises(ApiError) as error:
        prepare(chat(prompt_logprobs=2), LETTERS, READY)
    assert (error.value.status, error.value.param, error.value.code) == (400, "prompt_logprobs", "request_too_large")


@pytest.mark.parametrize("order", [chat, completion])
def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(order: Callable[..., Order]) -> None:
    """A megabyte takes a second to encode, and its length alone says enough."""
    most = prompts.context_length(READY) * LETTERS.table.longest
    for size, counted in ((most - 20, "tokens"), (most + 1, "characters")):
        text = {"messages": [{"role": "user", "content": "a" * size}]} if order is chat else {"prompt": "a" * size}
        with pytest.raises(ApiError, match=rf"\d+ {counted}\.") as error:
            prepare(order(**text), LETTERS, READY)
        assert (error.value.status, error.value.code) == (400, "context_length_exceeded")

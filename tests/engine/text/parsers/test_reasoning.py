"""Reasoning in front of answers and calls, and gpt-oss's channels, in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.parsers.families import Families, parser_for
from engine.text.parsers.harmony import SHOWN
from engine.text.parsers.parts import Parser, Reasoning, ToolArguments, ToolStart
from nproxy.openai.jsonvalue import JSON
from tests.engine.text.parsers.folding import ChoiceText, counting, read

FUNCTIONS: dict[str, JSON] = {"weather": {}}
QWEN = Families("hermes", "think")
MISTRAL = Families("mistral", "mistral")
SEED_OSS = Families("seed-oss", "seed-oss")
GPT_OSS = Families("gpt-oss", "gpt-oss")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CALLS = [("weather", '{"city": "Paris"}')]
ANALYSIS = "<|channel|>analysis<|message|>The user asks.<|end|>"
TO_WEATHER = "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"

ROWS: dict[str, tuple[Families, bool, str, ChoiceText]] = {
    "marks": (QWEN, False, "<think>\nHm, so.\n</think>\n\nFour.", ChoiceText("Four.", "Hm, so.")),
    "the prompt has opened it": (QWEN, True, "\nHm.\n</think>\n\nFour.\n", ChoiceText("Four.\n", "Hm.")),
    "no reasoning": (QWEN, False, " Four, <think> and all.", ChoiceText(" Four, <think> and all.")),
    "empty": (QWEN, False, "<think>\n\n</think>\n\nFour.", ChoiceText("Four.")),
    "cut off": (QWEN, True, "Hm, so <", ChoiceText("", "Hm, so <")),
    "the end mark alone": (QWEN, False, "Four.</think>", ChoiceText("Four.</think>")),
    "twice": (QWEN, False, "<think>a</think>b<think>c</think>", ChoiceText("b<think>c</think>", "a")),
    "then a call": (QWEN, False, f"<think>Hm.</think>\n\nOn it.\n{CALL}", ChoiceText("On it.", "Hm.", CALLS)),
    "a call alone behind it": (QWEN, True, f"Hm.</think>\n\n{CALL}", ChoiceText("", "Hm.", CALLS)),
    "a call in it is none": (QWEN, True, f"Shall I {CALL}?</think>No.", ChoiceText("No.", f"Shall I {CALL}?")),
    "mistral": (
        MISTRAL,
        False,
        '[THINK]Hm.[/THINK]On it.[TOOL_CALLS]weather[ARGS]{"city": "Paris"}',
        ChoiceText("On it.", "Hm.", CALLS),
    ),
    "seed-oss": (
        SEED_OSS,
        True,
        "No budget.</seed:think>On it.\n<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n"
        "</function>\n</seed:tool_call>",
        ChoiceText("On it.", "No budget.", CALLS),
    ),
    "gpt-oss": (
        GPT_OSS,
        False,
        f"{ANALYSIS}<|start|>assistant<|channel|>final<|message|>Four.<|return|>",
        ChoiceText("Four.", "The user asks."),
    ),
    "gpt-oss: a stop token is not shown": (
        GPT_OSS,
        False,
        f'{ANALYSIS}{TO_WEATHER}{{"city": "Paris"}}',
        ChoiceText("", "The user asks.", CALLS),
    ),
    "gpt-oss: two calls and a preamble": (
        GPT_OSS,
        False,
        "<|channel|>commentary<|message|>I look.<|end|>"
        f'{TO_WEATHER}{{"city": "Paris"}}<|call|>'
        "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|><|call|>",
        ChoiceText("I look.", "", [*CALLS, ("weather", "{}")]),
    ),
    "gpt-oss: messages of one kind": (
        GPT_OSS,
        False,
        f"{ANALYSIS}<|start|>assistant{ANALYSIS}<|start|>assistant<|channel|>final<|message|>Four.",
        ChoiceText("Four.", "The user asks.\nThe user asks."),
    ),
    "gpt-oss: a tool of its own": (
        GPT_OSS,
        False,
        "<|channel|>commentary to=python code<|message|>print(4)<|call|>",
        ChoiceText("", "print(4)"),
    ),
    "gpt-oss: no channel": (GPT_OSS, False, '{"four": 4} < 5', ChoiceText('{"four": 4} < 5')),
    "gpt-oss: a header that ends": (
        GPT_OSS,
        False,
        "<|channel|>final<|end|>Four.",
        ChoiceText("<|channel|>finalFour."),
    ),
    "gpt-oss: cut off in a header": (GPT_OSS, False, f"{ANALYSIS}<|start|>assis", ChoiceText("", "The user asks.")),
    "gpt-oss: a message without an end": (
        GPT_OSS,
        False,
        "<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>Four.",
        ChoiceText("Four.", "Hm."),
    ),
}


def fresh(families: Families, thinking: bool) -> Parser:
    return parser_for(families, functions=FUNCTIONS, thinking=thinking, new_id=counting())


@pytest.mark.parametrize("row", ROWS)
def test_an_answer_is_read_in_any_two_pieces_and_by_characters(row: str) -> None:
    families, thinking, text, said = ROWS[row]
    assert read(fresh(families, thinking), text) == said
    for at in range(len(text) + 1):
        assert read(fresh(families, thinking), [text[:at], text[at:]]) == said


MARKS = ["<think>", "</think>", "[THINK]", "[/THINK]", "<tool_call>", *SHOWN]
WORDS = ["assistant", "analysis", "final", "commentary", " to=functions.weather", CALL, "Hm."]
FRAGMENTS = st.sampled_from([*MARKS, *WORDS, *' \n<|{}"'])


@given(st.data())
def test_any_pieces_give_the_same(data: st.DataObject) -> None:
    families, thinking = data.draw(st.sampled_from([QWEN, MISTRAL, GPT_OSS])), data.draw(st.booleans())
    text = "".join(data.draw(st.lists(FRAGMENTS, max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(fresh(families, thinking), [text])
    assert read(fresh(families, thinking), pieces) == read(fresh(families, thinking), text) == whole


def test_reasoning_and_calls_are_streamed_as_they_come() -> None:
    parser = fresh(GPT_OSS, False)
    assert parser.feed("<|channel|>analysis<|message|>Hm") == [Reasoning("Hm")]
    assert parser.feed(" so<|en") == [Reasoning(" so")]
    assert parser.feed(f"d|>{TO_WEATHER}") == [ToolStart(0, f"call_{0:032x}", "weather")]
    assert parser.feed('{"ci') == [ToolArguments(0, '{"ci')]


def test_where_no_calls_are_looked_for_they_are_content() -> None:
    for families in (QWEN, GPT_OSS):
        parser = parser_for(families, functions=None, thinking=False, new_id=counting())
        text = f"<think>Hm.</think>{CALL}" if families is QWEN else f"{TO_WEATHER}{{}}"
        assert read(parser, [text]) == (ChoiceText(CALL, "Hm.") if families is QWEN else ChoiceText("{}"))

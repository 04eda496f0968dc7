"""The families' syntaxes for tool calls, as in their models' chat templates and documentation."""

from __future__ import annotations

from collections.abc import Mapping

import regex

from engine.text.parsers.calls import Syntax
from engine.text.parsers.tags import TagSyntax

_BARE_OBJECT = r'(?P<list>\[\s*)?(?=\{\s*"(?:name|type|id|function|parameters|arguments)"\s*:)'
_NAME = r"[^\s<>{}\[\]]{1,256}"

# <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one pair of marks for each call: Hermes 2 Pro, Qwen2.5,
# Qwen3, SmolLM3.
_HERMES = Syntax(
    opening=regex.compile(r"<tool_call>\s*(?=\{)"),
    closing=regex.compile(r"\s*</tool_call>"),
    shown=("<tool_call>", "</tool_call>"),
)

# <tool_call>, <function=name>, <parameter=key>, value, </parameter> ..., </function> and </tool_call>, each on its own
# line: Qwen3-Coder, Qwen3.5, Nemotron 3. Models sometimes leave out the first mark, or the one behind the last value.
# https://github.com/QwenLM/Qwen3-Coder/issues/475
_QWEN3_CODER = TagSyntax(
    opening=regex.compile(r"(?:<tool_call>\s*)?(?=<function=)"),
    function=regex.compile(
        r"<function=(?P<name>[^\s<>]{1,256})>\s*(?=(?P<parameter><parameter=)|</function>|</tool_call>)"
    ),
    parameter=regex.compile(r"\s*<parameter=(?P<key>[^<>\n]{1,256})>(?:\n|(?=[^\n]))"),
    value_end=regex.compile(r"\n?(?:</parameter>|(?=</function>\s{0,4}</tool_call>))"),
    end=regex.compile(r"\s*(?:</function>|(?=</tool_call>))"),
    closing=regex.compile(r"\s*</tool_call>"),
    shown=("<tool_call>", "</tool_call>"),
)

# The same in marks of another name, and with values as they are, on the lines of their tags: Seed-OSS.
# https://huggingface.co/ByteDance-Seed/Seed-OSS-36B-Instruct/blob/main/chat_template.jinja
_SEED_OSS = TagSyntax(
    opening=regex.compile(r"<seed:tool_call>\s*(?=<function=)"),
    function=regex.compile(
        r"<function=(?P<name>[^\s<>]{1,256})>\s*(?=(?P<parameter><parameter=)|</function>|</seed:tool_call>)"
    ),
    parameter=regex.compile(r"\s*<parameter=(?P<key>[^<>\n]{1,256})>"),
    value_end=regex.compile(r"</parameter>|(?=</function>\s{0,4}</seed:tool_call>)"),
    end=regex.compile(r"\s*(?:</function>|(?=</seed:tool_call>))"),
    closing=regex.compile(r"\s*</seed:tool_call>"),
    shown=("<seed:tool_call>", "</seed:tool_call>"),
)

# <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value> ...</tool_call>, with line ends between the tags in
# GLM-4.5 and 4.6.
_GLM = TagSyntax(
    opening=regex.compile(r"<tool_call>\s*(?=[^\s<>{}\[\]])"),
    function=regex.compile(rf"(?P<name>{_NAME})\s*(?=(?P<parameter><arg_key>)|</tool_call>)"),
    parameter=regex.compile(r"\s*<arg_key>(?P<key>[^<>\n]{1,256})</arg_key>\s*<arg_value>"),
    value_end=regex.compile(r"</arg_value>|(?=</tool_call>)"),
    end=regex.compile(r"\s*(?=</tool_call>)"),
    closing=regex.compile(r"\s*</tool_call>"),
    shown=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)

# {"name": ..., "parameters": {...}}, several separated by ";", sometimes after <|python_tag|>: Llama 3.1 to 3.3.
_LLAMA3 = Syntax(
    opening=regex.compile(r"(?:<\|python_tag\|>\s*)?" + _BARE_OBJECT),
    separators=" \t\r\n;,",
    bare=True,
    shown=("<|python_tag|>",),
)

# [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] up to the v7 tokenizers, then [TOOL_CALLS]name[ARGS]{...} for
# each call, with a [CALL_ID] between in v11. Ids have nine letters and digits.
_MISTRAL = Syntax(
    opening=regex.compile(r"\[TOOL_CALLS\]\s*(?P<list>\[\s*)?(?=[^\s\[])"),
    head=regex.compile(rf"(?P<name>{_NAME})\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\]\s*)?\{{"),
    prefix="",
    ids=9,
    shown=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
)

# After the begin marks function<sep>name, line break and a fenced JSON block (V3, R1), or name<sep>{...} (V3.1).
_DEEPSEEK = Syntax(
    opening=regex.compile(r"(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>\s*(?=\S)"),
    head=regex.compile(
        rf"(?:function<｜tool▁sep｜>\s*(?P<name>{_NAME})\s*```(?:json)?\s*|(?P<name>{_NAME})<｜tool▁sep｜>\s*)\{{"
    ),
    closing=regex.compile(r"\s*(?:```|<｜tool▁call▁end｜>|<｜tool▁calls▁end｜>)"),
    shown=(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
)

# {"name": ..., "arguments": {...}} or an array of these, fenced or not: models that were told so in words, or forced.
_JSON = Syntax(
    opening=regex.compile(r"(?:```(?:json)?\s*)?" + _BARE_OBJECT),
    closing=regex.compile(r"\s*```"),
    separators=" \t\r\n;,",
    bare=True,
)

SYNTAXES: Mapping[str, Syntax] = {
    "hermes": _HERMES,
    "qwen3-coder": _QWEN3_CODER,
    "seed-oss": _SEED_OSS,
    "glm": _GLM,
    "llama3": _LLAMA3,
    "mistral": _MISTRAL,
    "mistral-v11": _MISTRAL,
    "deepseek": _DEEPSEEK,
    "deepseek-v3.1": _DEEPSEEK,
    "json": _JSON,
}

"""Rewriting a chunk on its bytes equals parsing and writing it, byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nproxy.openai.chunks import MalformedChunk, is_done, parse_chunk
from nproxy.openai.dialect import Dialect
from nproxy.openai.rewriter import ListeningRewriter
from nproxy.openai.sse import BETWEEN, SSEDecoder
from tests.openai.rewriting import CHAT, COMPLETIONS, FINISH, Paths, same, taught, vllm
from tests.transcripts.recorded import load


@pytest.mark.parametrize(
    "text",
    [
        "x",
        " ",
        "日本",
        "😀",
        "a\nb",
        '"',
        "\\",
        'say \\"hi\\"',
        "\x01",
        "\t\r\b\f",
        "\x7f",
        "a" * 10_000,
        "\u2028",
        "</s>",
        "{}",
    ],
)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_texts_that_take_the_fast_road(text: str, ascii_only: bool) -> None:
    assert taught().send(vllm(text, ascii_only=ascii_only))


def test_escapes_that_nobody_needs_become_what_they_stand_for() -> None:
    paths = taught()
    assert paths.send(vllm("/<").replace(b'"/<"', b'"\\/\\u003c"'))
    assert b'"content":"/<"' in (paths.rewriter.swap(vllm("x").replace(b'"x"', b'"\\/\\u003c"')) or b"")


@pytest.mark.parametrize(
    "data",
    [
        vllm(""),
        vllm("x").replace(b'"x"', b'"\\ud83d"'),  # half a character
        vllm("x", finish_reason="stop"),
        vllm("x", logprobs={"content": []}),
        vllm("x", stop_reason=None),
        vllm("x", index=1),
        vllm("x", key="reasoning"),
        vllm("x").replace(b'"created":1', b'"created":2'),
        vllm("x").replace(b'"content":"x"', b'"content":"x","role":"assistant"'),
        vllm("x").replace(b'"content":"x"', b'"content":"x","tool_calls":[]'),
        vllm("x").replace(b'"content":"x"', b'"content":null'),
        vllm("x")[:-1] + b',"usage":{"prompt_tokens":1,"completion_tokens":1}}',
        vllm("x") + b" ",
        b" " + vllm("x"),
        b'{"error":{"message":"m"}}',
    ],
)
def test_chunks_that_take_the_full_road(data: bytes) -> None:
    assert not taught().send(data)


@pytest.mark.parametrize(
    "data",
    [
        b"[DONE]",
        b"",
        vllm("x")[:-1],
        vllm("x").replace(b'"x"', b'"\xff"'),
        vllm("x").replace(b'"x"', b'"\xe6\x97"'),
        vllm("x").replace(b'"x"', b'"\n"'),
        vllm("x").replace(b'"x"', b'"\\"'),
        vllm("x").replace(b'"x"', b'"x\\\\\\"'),
        vllm("x").replace(b'"x"', b'"\\q"'),
        vllm("x").replace(b'"x"', b'"\\u12"'),
    ],
)
def test_K12_what_is_malformed_never_passes(data: bytes) -> None:
    assert taught().rewriter.swap(data) is None


def test_a_string_cannot_break_out_of_its_slot() -> None:
    paths = taught()
    paths.send(vllm("x").replace(b'"x"', b'"x","content":"y"'))
    paths.send(vllm("x").replace(b'"x"', b'"x"},"finish_reason":"stop","y":{"z":"w"'))
    assert paths.hits == 1


def test_leg_of_several_choices_and_channels() -> None:
    paths = Paths()
    for text in ("a", "b", "c", "d"):
        for index in range(12):
            for key in ("reasoning", "content"):
                assert paths.send(vllm(text, index, key=key)) is (text in "cd")
    assert paths.hits == 48


def test_names_that_change_with_every_chunk_are_passed_over() -> None:
    paths = Paths()
    for i in range(50):
        data = vllm("x").replace(b"chatcmpl-u", b"chatcmpl-%d" % i).replace(b'"created":1', b'"created":%d' % (i // 2))
        assert paths.send(data) is (i > 2)  # of the first two, only the ids differ


def test_a_time_that_changes_now_and_then_is_learned_once() -> None:
    paths = Paths()
    for second in range(5):
        for _ in range(10):
            paths.send(vllm("x").replace(b'"created":1', b'"created":%d' % second))
    assert paths.hits == 47
    assert len(paths.rewriter._templates) == 0, "what no chunk will have again is forgotten"


def test_another_value_that_changes_now_and_then_is_learned_anew() -> None:
    paths = Paths()
    for second in range(5):
        for _ in range(10):
            paths.send(vllm("x").replace(b'"model":"up"', b'"model":"up%d"' % second))
    assert paths.hits == 40
    assert len(paths.rewriter._templates) == 1, "what no chunk will have again is forgotten"


def test_D6_forget() -> None:
    paths = Paths()
    for text in "abc":
        for index in (0, 1):
            paths.send(vllm(text, index))
    paths.rewriter.forget(0)
    assert paths.rewriter.swap(vllm("x", 0)) is None
    assert paths.rewriter.swap(vllm("x", 1)) is not None
    paths.rewriter.forget()
    assert paths.rewriter.swap(vllm("x", 1)) is None
    paths.send(vllm("x", 1))
    paths.send(vllm("x", 1))
    assert paths.send(vllm("x", 1))


def test_the_same_key_elsewhere_in_the_chunk() -> None:
    """A decoy before the string, with the same key and the same text, must not be taken for it."""

    def decoyed(text: str, decoy: str) -> bytes:
        return vllm(text).replace(b'"id"', b'"x":{"content":"%s"},"id"' % decoy.encode(), 1)

    paths = Paths()
    for text, decoy in [("a", "a"), ("a", "a"), ("b", "a"), ("b", "b"), ("c", "b"), ("c", "c"), ("d", "d")]:
        paths.send(decoyed(text, decoy))
    assert paths.hits == 0
    paths = Paths()
    for text, decoy in [("a", "a"), ("a", "a"), ("a", "b"), ("a", "c")]:
        assert not paths.send(decoyed(text, decoy))


def test_a_key_twice_in_the_delta() -> None:
    """The last one counts; the first must not be taken for it, though it reads the same."""

    def twice(first: str, last: str) -> bytes:
        return vllm(last).replace(b'"delta":{', b'"delta":{"content":"%s",' % first.encode())

    paths = Paths()
    for first, last in [("a", "a"), ("a", "a"), ("b", "a"), ("b", "b"), ("c", "d")]:
        assert not paths.send(twice(first, last))


def test_a_role_in_every_chunk_is_left_out_on_both_roads() -> None:
    def chunk(text: str) -> bytes:
        return vllm("x").replace(b'"content":"x"', b'"role":"assistant","content":"%s"' % text.encode())

    paths = Paths()
    assert [paths.send(chunk(text)) for text in "abcd"] == [False, False, True, True]
    hit = paths.rewriter.swap(chunk("e"))
    assert hit is not None
    assert b"role" not in hit


def call(arguments: Any, tool: str = "function", **entry: Any) -> bytes:
    """A chunk that continues a tool call."""
    key = "arguments" if tool == "function" else "input"
    calls = json.dumps([{"index": 0, tool: {key: arguments}} | entry], ensure_ascii=False, separators=(",", ":"))
    return vllm("x").replace(b'"content":"x"', b'"tool_calls":' + calls.encode())


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"index": 3},
        {"id": "call_1", "type": "function"},
        {"id": None, "type": "function", "function": {"name": None, "arguments": "{}"}},  # SGLang
        {"x": None},
        {"tool": "custom"},
    ],
)
def test_arguments_of_a_call_are_rewritten(entry: dict[str, Any]) -> None:
    paths = Paths()
    for text, fast in [('{"', False), ("city", False), ('":"Z\u00fcrich"', True), ("\n}", True)]:
        data = call(text, **entry)
        if "function" in entry:
            data = data.replace(b'"{}"', json.dumps(text, ensure_ascii=False).encode())
        assert paths.send(data) is fast
    assert paths.send_all(call("a", **entry), call("b", **entry)) == 2


@pytest.mark.parametrize(
    "data",
    [
        call({"city": "Bern"}),
        call("{}", function={"name": "f", "arguments": "{}"}),
        call("{}", index="0"),
        call("{}", index=None),
        call("{}", x=1),
        call("{}", custom={"input": "a"}),
        call("{}").replace(b'"tool_calls":[', b'"tool_calls":[{"index":1,"function":{"arguments":"a"}},'),
        call("{}").replace(b'"tool_calls":[', b'"content":"a","tool_calls":['),
        call("{}").replace(b'"tool_calls":[', b'"tool_calls":[null,'),
        call("{}").replace(b"[{", b"{", 1),
    ],
)
def test_what_says_more_of_calls_teaches_nothing(data: bytes) -> None:
    paths = Paths()
    try:
        for _ in range(4):
            assert not paths.send(data)
    except MalformedChunk:
        pass


def test_R5_a_space_behind_the_chunk() -> None:
    paths = Paths()
    assert [paths.send(vllm(text) + b" ") for text in "abcd"] == [False, False, True, True]


@pytest.mark.parametrize(
    ("server", "name", "dialect", "fast"),
    [
        ("vllm", "n2_stream", CHAT, 10),
        ("vllm", "n2_stream_usage", CHAT, 10),
        ("vllm", "cmpl_n2_stream", COMPLETIONS, 6),
        ("llamacpp", "n2_stream", CHAT, 12),
        ("llamacpp", "cmpl_n2_stream", COMPLETIONS, 6),  # `created` changes in the middle
        ("vllm", "n2_logprobs_stream", CHAT, 0),  # three chunks of each choice, the last one with its finish
        ("llamacpp", "n2_logprobs_stream", CHAT, 2),
        ("mlx-lm", "n2_logprobs_stream", CHAT, 6),
        ("ollama", "n2_logprobs_stream", CHAT, 5),
        ("vllm", "n2_stream_cont_usage", CHAT, 0),
    ],
)
def test_recorded_streams(server: str, name: str, dialect: Dialect, fast: int) -> None:
    paths = Paths(dialect)
    for event in SSEDecoder().feed(load(server, name).body):
        if not is_done(event.data):
            chunk = parse_chunk(event.data, dialect)
            if len(chunk.choices) == 1 and chunk.choices[0].finish_reason is None:
                paths.send(event.data)
            else:
                assert paths.rewriter.swap(event.data) is None
    assert paths.hits == fast


@pytest.mark.parametrize(
    ("chunks", "taken"),
    [
        pytest.param([vllm("d"), vllm("e"), vllm("f")], 3, id="plain"),
        pytest.param([vllm("d"), vllm('"\n\\'), vllm("f")], 3, id="escapes_that_stay"),
        pytest.param([vllm("日"), vllm("本"), vllm("é")], 3, id="not_ascii"),
        pytest.param([vllm("d"), vllm("é", ascii_only=True), vllm("f")], 3, id="an_escape_that_does_not"),
        pytest.param([vllm("d"), vllm("x").replace(b'"x"', b'"\\ud83d"'), vllm("f")], 0, id="half_a_character"),
        pytest.param([vllm("d"), vllm(""), vllm("f")], 0, id="an_empty_text"),
        pytest.param([vllm("日")[:-1], vllm("d")], 0, id="cut_short"),
        pytest.param([vllm("d"), vllm("e"), FINISH], 2, id="a_finish"),
        pytest.param([vllm("d"), FINISH, vllm("e")], 0, id="something_behind_a_finish"),
        pytest.param([vllm("d"), FINISH, FINISH], 1, id="two_others"),
        pytest.param([FINISH, vllm("d")], 0, id="a_finish_first"),
        pytest.param([vllm("d"), vllm("e", 1), vllm("f")], 0, id="another_index_between"),
        pytest.param([vllm("d"), vllm("e"), vllm("f", 1)], 2, id="another_index_behind"),
        pytest.param([vllm("d"), vllm("e"), b'{"error":{}}'], 2, id="an_error"),
        pytest.param([vllm("d"), vllm("e", key="reasoning_content")], 1, id="another_key"),
    ],
)
def test_several_at_once(chunks: list[bytes], taken: int) -> None:
    assert taught().send_all(*chunks) == taken


def test_choices_that_come_in_turns_are_taken_together() -> None:
    paths = Paths()
    for text in "abc":
        for index in range(8):
            paths.send(vllm(text, index))
    turn = [vllm(text, index) for index, text in enumerate('def"\n\u00e9gh')]
    assert paths.send_all(*turn) == 1, "then it is known that they do"
    assert paths.send_all(*turn, *turn) == 16
    assert paths.send_all(*turn[:5], FINISH, *turn[5:]) == 5
    paths.rewriter.forget(2)
    assert paths.send_all(*turn) == 2


def test_texts_of_one_choice_under_two_keys_do_not_come_in_turns() -> None:
    paths = Paths()
    for text in "abc":
        for key in ("reasoning", "content"):
            paths.send(vllm(text, key=key))
    assert paths.send_all(vllm("d", key="reasoning"), vllm("e"), vllm("f")) == 1
    assert not paths.rewriter._by_turns


def test_half_a_character_is_not_completed_by_the_next_text() -> None:
    """Two texts that are UTF-8 together and not each by itself."""
    halves = [vllm("@").replace(b"@", half) for half in (b"\xc3", b"\xa9")]
    frames, _, rest = taught().rewriter.swap_all(BETWEEN.join(halves))
    assert not frames
    assert rest == BETWEEN.join(halves)


def test_nothing_at_once_that_is_not_known() -> None:
    chunks = [vllm("d"), vllm("e")]
    assert Paths().send_all(*chunks) == 0
    paths = taught()
    paths.rewriter.forget(0)
    assert paths.send_all(*chunks) == 0


def test_each_text_is_overheard() -> None:
    heard: list[bytes] = []
    paths = Paths()
    paths.rewriter = ListeningRewriter(CHAT, lambda index, key: heard.append)
    for letter in "abc":
        paths.send(vllm(letter))
    assert paths.send_all(vllm("d"), vllm("e"), vllm("f", 1)) == 2
    assert heard == [b"c", b"d", b"e"]


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["a", "a", '"', "\\", "\n", '","content":"']
)
extras = st.sampled_from(
    [{}, {}, {}, {"role": "assistant"}, {"role": None}, {"refusal": None}, {"reasoning": "r"}, {"x": 1 << 70}]
)
shapes = st.fixed_dictionaries(
    {
        "indent": st.sampled_from([None, None, 1]),
        "ascii": st.booleans(),
        "first": st.booleans(),
        "key": st.sampled_from(["content", "content", "reasoning_content", "text"]),
        "dialect": st.sampled_from([CHAT, CHAT, COMPLETIONS]),
    }
)
pieces = st.fixed_dictionaries(
    {
        "text": text,
        "index": st.sampled_from([0, 0, 1, 12]),
        "extra": extras,
        "finish": st.sampled_from([None, None, None, None, None, "stop"]),
        "usage": st.sampled_from([None, None, None, None, {"prompt_tokens": 1, "completion_tokens": 1}]),
        "repeat": st.integers(1, 3),
        "logprobs": st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        "padding": st.none() | st.text(max_size=3),
    }
)


def build(shape: dict[str, Any], piece: dict[str, Any]) -> bytes:
    choice = {"index": piece["index"]}
    if shape["dialect"] is CHAT:
        choice["delta"] = {shape["key"]: piece["text"]} | piece["extra"]
    else:
        choice |= {"text": piece["text"]} | {key: value for key, value in piece["extra"].items() if key != "role"}
    rates = piece["logprobs"]
    choice |= {"logprobs": None if rates is None else {"content": rates}, "finish_reason": piece["finish"]}
    if shape["first"]:
        choice = dict(reversed(choice.items()))
    value = {"choices": [choice], "id": "x", "usage": piece["usage"], "model": "m"}
    if piece["padding"] is not None:
        value |= {"obfuscation": piece["padding"]}
    return json.dumps(value, ensure_ascii=shape["ascii"], indent=shape["indent"]).encode()


@settings(derandomize=True, deadline=None, max_examples=400)
@given(shapes, st.lists(pieces, min_size=3, max_size=12))
def test_rewriting_equals_parsing(shape: dict[str, Any], stream: list[dict[str, Any]]) -> None:
    paths = Paths(shape["dialect"])
    for piece in stream:
        for _ in range(piece["repeat"]):
            paths.send(build(shape, piece))


@settings(derandomize=True, deadline=None, max_examples=400)
@given(shapes, st.lists(pieces, min_size=3, max_size=12), st.data())
def test_rewriting_several_at_once_equals_parsing(
    shape: dict[str, Any], stream: list[dict[str, Any]], data: st.DataObject
) -> None:
    paths = Paths(shape["dialect"])
    chunks = [build({**shape, "indent": None}, piece) for piece in stream for _ in range(piece["repeat"])]
    while chunks:
        several = data.draw(st.integers(1, 6))
        together, chunks = chunks[:several], chunks[several:]
        for chunk in together[paths.send_all(*together) :]:
            paths.send(chunk)


@settings(derandomize=True, deadline=None, max_examples=800)
@given(shapes, text.filter(bool), st.booleans(), st.data())
def test_whatever_passes_is_what_parsing_gives(
    shape: dict[str, Any], content: str, mixed: bool, data: st.DataObject
) -> None:
    """Teach a rewriter, then damage a chunk: what still takes the fast path must be valid and come out the same."""
    paths = Paths(shape["dialect"])
    piece = {"text": content, "index": 0, "extra": {}, "finish": None, "usage": None}
    for place in range(4):
        rates, padding = ([-place / 3, 0.5], "x" * place) if mixed else (None, None)
        chunk = build(shape, piece | {"logprobs": rates, "padding": padding})
        paths.send(chunk)
    assert paths.hits or (mixed and shape["indent"]), "a value of several lines is parsed"
    start = data.draw(st.integers(0, len(chunk)))
    end = min(len(chunk), start + data.draw(st.integers(0, 3)))
    damage = data.draw(
        st.binary(max_size=3)
        | st.sampled_from([b'"', b"\\", b'\\"', b"\xc3", b"\\u00", b"}", b'","', b"\n", b"]}", b"{"])
    )
    damaged = chunk[:start] + damage + chunk[end:]
    hit = paths.rewriter.swap(damaged)
    try:
        if hit is not None:
            assert same(hit, paths.full(damaged))
        if b"\n" not in damaged:  # else it is no line
            paths.send_all(chunk, damaged, chunk)
            paths.send_all(chunk, chunk, damaged)
    except MalformedChunk:
        pytest.fail(f"a malformed chunk passed: {damaged!r}")

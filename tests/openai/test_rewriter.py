"""Rewriting a chunk on its bytes equals parsing and writing it, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nproxy.openai.chunks import MalformedChunk, UpstreamChoice, is_done, parse_chunk
from nproxy.openai.dialect import Dialect
from nproxy.openai.places import with_values
from nproxy.openai.rewriter import ListeningRewriter, Rewriter
from nproxy.openai.sse import BETWEEN, SSEDecoder
from nproxy.openai.wire import Wire
from tests.transcripts.recorded import load

CHAT, COMPLETIONS = Dialect.CHAT, Dialect.COMPLETIONS
OFFSET = 40


def wire(dialect: Dialect) -> Wire:
    return Wire(dialect, "chatcmpl-own", 17, "shown", include_usage=True)


def written(dialect: Dialect, choice: UpstreamChoice, top: Mapping[str, Any]) -> bytes:
    """What a merge does with a plain chunk: its own index and head, the role left out, all else kept."""
    return wire(dialect).chunk(
        choice.index + OFFSET,
        choice.delta,
        finish_reason=choice.finish_reason,
        logprobs=choice.logprobs,
        extra=choice.extra,
        top=top,
    )


class Paths:
    """Runs chunks over both paths, and compares the fast one with the slow one."""

    def __init__(self, dialect: Dialect = CHAT) -> None:
        self.dialect = dialect
        self.rewriter = Rewriter(dialect)
        self.hits = 0

    def full(self, data: bytes) -> bytes:
        chunk = parse_chunk(data, self.dialect)
        (choice,) = chunk.choices
        assert choice.finish_reason is None
        assert chunk.usage is None
        return written(self.dialect, choice, chunk.extra)

    def send(self, data: bytes) -> bool:
        """Send one chunk; says whether it took the fast path."""
        hit = self.rewriter.swap(data)
        if hit is not None:
            assert same(hit, self.full(data))
            self.hits += 1
            return True
        chunk = parse_chunk(data, self.dialect)
        self.rewriter.learn(
            data, chunk, lambda values, _: written(self.dialect, *with_values(chunk.choices[0], chunk.extra, values))
        )
        return False

    def send_all(self, *chunks: bytes) -> int:
        """Send several at once; says how many of those in front took the fast path."""
        frames, number, rest = self.rewriter.swap_all(BETWEEN.join(chunks))
        left = len(rest.split(BETWEEN)) if rest else 0
        taken = len(chunks) - left
        assert number == taken
        assert rest == BETWEEN.join(chunks[taken:])
        assert same(frames, b"".join(map(self.full, chunks[:taken])))
        return taken


def same(frames: bytes, others: bytes) -> bool:
    """Whether frames are the same but for blanks and the form of numbers in values that are passed on unread."""
    if frames == others:
        return True
    events, wanted = (list(SSEDecoder().feed(these)) for these in (frames, others))
    return [json.loads(event.data) for event in events] == [json.loads(event.data) for event in wanted]


def vllm(text: str, index: int = 0, *, ascii_only: bool = False, key: str = "content", **choice: Any) -> bytes:
    value = {
        "id": "chatcmpl-u",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "up",
        "choices": [{"index": index, "delta": {key: text}, "logprobs": None, "finish_reason": None} | choice],
    }
    return json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":")).encode()


def taught(**options: Any) -> Paths:
    paths = Paths()
    assert not paths.send(vllm("a", **options))
    assert not paths.send(vllm("b", **options))  # two alike make a template
    assert paths.send(vllm("c", **options))
    return paths


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


def rated(text: str, place: int = 0) -> dict[str, Any]:
    top = [{"token": other, "logprob": -place / 7, "bytes": [*other.encode()]} for other in (text, "}]")]
    return {"content": [{**top[0], "top_logprobs": top}]}


def rich(text: str, place: int, **shape: Any) -> bytes:
    """A chunk with values beside the text that change, too. shape: its `delta`, `choice` and `top`, made from these."""
    delta, choice, top = (shape.get(part, lambda *_: {})(text, place) for part in ("delta", "choice", "top"))
    own = {"index": 0, "delta": {"content": text} | delta, "logprobs": None, "finish_reason": None}
    value = {"id": "u", "created": 1, "model": "up", "choices": [own | choice], **top}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


RICH = {
    "log probabilities": {"choice": lambda text, place: {"logprobs": rated(text, place)}},
    "token ids, vLLM": {"choice": lambda text, place: {"token_ids": [place, 10 * place]}},
    "both": {"choice": lambda text, place: {"logprobs": rated(text, place), "token_ids": [place]}},
    "a padding, OpenAI": {"top": lambda text, place: {"usage": None, "obfuscation": "aZ09"[place % 4] * (place + 1)}},
    "a padding, Mistral": {"top": lambda text, place: {"p": "abc"[: place % 3 + 1]}},
    "the text twice, vLLM": {"delta": lambda text, _: {"content": "", "reasoning": text, "reasoning_content": text}},
    "parts, OpenRouter": {
        "delta": lambda text, _: {"content": "", "reasoning": text, "reasoning_details": [{"text": text, "index": 0}]}
    },
    "the text beside the delta, Together": {
        "delta": lambda _, place: {"token_id": place},
        "choice": lambda text, _: {"text": text},
    },
    "timings, llama.cpp": {"top": lambda _, place: {"timings": {"predicted_n": place, "predicted_ms": place / 3}}},
    "a rate, TensorRT-LLM": {
        "delta": lambda text, _: {"content": text, "tool_calls": []},
        "choice": lambda _, place: {"avg_decoded_tokens_per_iter": 1 + 1 / (place + 1)},
    },
    "no calls": {"delta": lambda text, _: {"content": text, "tool_calls": [], "annotations": [], "audio": {}}},
    "a name beside the text, MiniMax": {"delta": lambda text, _: {"content": text, "name": "MiniMax"}},
}


@pytest.mark.parametrize("name", RICH)
def test_values_that_nothing_depends_on_are_passed_on(name: str) -> None:
    paths, shape = Paths(), RICH[name]
    chunks = [rich(text, place, **shape) for place, text in enumerate(["a", "b", "c", 'd"', "\\", "é", "},", "h"])]
    assert [paths.send(chunk) for chunk in chunks] == [False, False, *[True] * 6]
    assert paths.send_all(*chunks) == 8
    assert paths.send_all(*chunks[:3], FINISH) == 3
    for chunk in chunks:
        frame, full = paths.rewriter.swap(chunk), paths.full(chunk)
        assert frame == full, "as compact as it came"
    paths.rewriter.forget(0)
    assert paths.rewriter.swap(chunks[0]) is None


def test_values_with_blanks_keep_them() -> None:
    paths = Paths()
    for place, text in enumerate("abc"):
        chunk = json.dumps(json.loads(rich(text, place, **RICH["both"])), indent=1).replace("\n", " ").encode()
        assert paths.send(chunk) is (text == "c")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b'{"content":[}',
        b'{"content":[]},"finish_reason":"stop","x":{}',
        b'{"content":[NaN]}',
        b'{"content":["\xff"]}',
        b'{"content":["\\ud800"]}',
        b'{"content":\n[]}',
        b'{"content":\r[]}',
        b"1 2",
        b"{" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_K12_a_value_that_is_no_json_is_not_passed_on(value: bytes) -> None:
    paths, shape = Paths(), RICH["log probabilities"]
    for place, text in enumerate("abc"):
        paths.send(rich(text, place, **shape))
    before, _, behind = rich("d", 3, choice=lambda *_: {"logprobs": "?"}).partition(b'"?"')
    assert paths.rewriter.swap(before + b'{"content":[]}' + behind) is not None
    assert paths.rewriter.swap(before + value + behind) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"y": "\x7fslot0\x7f"},
        {"y": {"\x7fslot1\x7f": 1}},
        {"y": ["\x7fslot1\x7f"]},
        {"y": "\\u007fslot1\\u007f"},
    ],
)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_what_looks_like_a_mark_stays(odd: dict[str, Any], ascii_only: bool) -> None:
    paths = Paths()
    for place, text in enumerate("abcde"):
        chunk = json.loads(rich(text, place, **RICH["log probabilities"], top=lambda *_: odd))
        paths.send(json.dumps(chunk, ensure_ascii=ascii_only, separators=(",", ":")).encode())


def test_a_key_that_could_be_found_inside_a_string_is_left_alone() -> None:
    paths = Paths()
    for place, text in enumerate("abcd"):
        odd = {
            "delta": lambda text, place: {"content": text, "x\\": place},
            "top": lambda *_: {"z": '"x":' + "[" * 5000},
        }
        assert not paths.send(rich(text, place, **odd))


def test_a_leg_teaches_only_so_much() -> None:
    paths = Paths()
    for _ in range(4):
        assert not paths.send(vllm("a" * 70_000)), "too long to be kept"
    for place in range(200):
        for text in "ab":
            paths.send(vllm(text, key=f"x{place}").replace(b'"id"', b'"%d":{},"id"' % place))
    for place in range(2000):
        paths.send(vllm("a", place))
    rewriter = paths.rewriter
    assert len(rewriter._seen) + len(rewriter._hopeless) <= 1024
    assert len(rewriter._markers) == 4
    rewriter.forget()
    assert not (rewriter._seen or rewriter._hopeless or rewriter._made or rewriter._templates or rewriter._mixed)


def test_templates_that_are_made_again_and_again() -> None:
    """What changes now and then, and is not passed over, is learned anew, but not for ever."""
    paths = Paths()
    for place in range(30):
        for text in "abc":
            paths.send(rich(text, place, **RICH["token ids, vLLM"]).replace(b'"model":"up"', b'"model":"%d"' % place))
    assert len(paths.rewriter._made) == 1
    assert len(paths.rewriter._mixed) == 0 or [*map(len, paths.rewriter._mixed.values())] == [1]
    assert 0 < paths.hits <= 16


def test_many_members_with_one_key_take_no_time() -> None:
    paths = Paths()
    many = b",".join([b'"x":0'] * 9000)
    for place, text in enumerate("abcd"):
        chunk = rich(text, place).replace(b'"id"', b'%b,"x":%d,"id"' % (many, place))
        assert not paths.send(chunk)


def test_choices_whose_index_is_behind_what_changes() -> None:
    paths = Paths()
    for place in range(40):
        value = json.loads(rich("a", place, **RICH["log probabilities"]))
        value["choices"][0]["index"] = place % 8
        value["choices"] = [dict(sorted(choice.items())) for choice in value["choices"]]  # delta, ..., index, logprobs
        assert paths.send(json.dumps(value, separators=(",", ":")).encode()) is (place >= 16)


@pytest.mark.parametrize(
    "shape",
    [
        {"choice": lambda text, place: {"message": {"content": text}}},
        {"choice": lambda text, place: {"usage": {"x": place}}},
        {"choice": lambda text, place: {"error": {"message": text}}},
        {"delta": lambda text, place: {"content": [text], "reasoning": text}},
        {"delta": lambda text, place: {"content": place, "reasoning": text}},
        {"delta": lambda text, place: {"tool_calls": [{"index": place}]}},
        {"top": lambda text, place: {"usage": {"prompt_tokens": 1, "completion_tokens": place}}},
        {"top": lambda text, place: {"model": str(place)}},
        {"top": lambda text, place: {"system_fingerprint": str(place)}},
        {"top": lambda text, place: {f"x{place}": 1}},
        {"top": lambda text, place: {f"x{at}": place for at in range(9)}},
    ],
)
def test_values_by_which_something_is_decided_are_parsed(shape: dict[str, Any]) -> None:
    paths = Paths()
    for place, text in enumerate("abcdefgh"):
        data = rich(text, place, **shape)
        assert paths.rewriter.swap(data) is None
        if b'"usage":{"p' not in data:
            assert not paths.send(data)


def test_what_never_teaches_is_looked_at_now_and_then() -> None:
    paths = Paths()
    made = {"top": lambda _, place: {"model": str(place)}}
    for place in range(40):
        paths.send(rich("x", place, **made))
    (seen,) = paths.rewriter._seen.values()
    assert seen.in_row == 40
    assert b'"model":"32"' in seen.data, "two of sixteen"
    hits = [paths.send(rich("x", 0, **made)) for _ in range(12)]
    assert hits == [False] * 9 + [True] * 3, "the 48th and 49th, and what follows"


def test_one_text_for_several_of_the_clients_choices() -> None:
    rewriter = Rewriter(CHAT)
    for letter in "abc":
        data = vllm(letter)
        chunk = parse_chunk(data, CHAT)
        (choice,) = chunk.choices

        def render(values: Any, _: bytes, choice: UpstreamChoice = choice) -> bytes:
            said, _ = with_values(choice, {}, values)
            return b"".join(wire(CHAT).chunk(index, said.delta) for index in range(8))

        frames = rewriter.swap(data)
        assert frames == (render({}, b"") if letter == "c" else None)
        rewriter.learn(data, chunk, render)
    frames, count, _ = rewriter.swap_all(BETWEEN.join((vllm("d"), vllm('"'))))
    assert count == 2
    said = [json.loads(event.data)["choices"][0] for event in SSEDecoder().feed(frames)]
    assert [(one["index"], one["delta"]["content"]) for one in said] == [
        (index, letter) for letter in ("d", '"') for index in range(8)
    ]


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


FINISH = vllm("", finish_reason="stop")


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


def test_only_texts_are_overheard() -> None:
    """Whatever else belongs to a choice is recorded from what was parsed."""
    heard: list[bytes] = []
    paths = Paths()
    paths.rewriter = ListeningRewriter(CHAT, lambda index, key: heard.append)
    for name in ("log probabilities", "token ids, vLLM", "the text twice, vLLM", "parts, OpenRouter"):
        for place, letter in enumerate("abcd"):
            assert not paths.send(rich(letter, place, **RICH[name]))
    for place, letter in enumerate("abcd"):
        assert paths.send(rich(letter, place, **RICH["a padding, OpenAI"])) is (letter in "cd")
    assert heard == [b"c", b"d"]


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

"""Chunks with more than a text that changes: what nothing depends on is passed on unread."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from nproxy.openai.chunks import UpstreamChoice, parse_chunk
from nproxy.openai.places import with_values
from nproxy.openai.rewriter import ListeningRewriter, Rewriter
from nproxy.openai.sse import BETWEEN, SSEDecoder
from tests.openai.rewriting import CHAT, FINISH, Paths, vllm, wire


def rated(text: str, place: int = 0) -> dict[str, Any]:
    top = [{"token": other, "logprob": -place / 7, "bytes": [*other.encode()]} for other in (text, "}]")]
    return {"content": [{**top[0], "top_logprobs": top}]}


def rich(text: str, place: int, **shape: Any) -> bytes:
    """A chunk with values beside the text that change, too. shape: its `delta`, `choice` and `top`, made from these."""
    delta, choice, top = (shape.get(part, lambda *_: {})(text, place) for part in ("delta", "choice", "top"))
    own = {"index": 0, "delta": {"content": text} | delta, "logprobs": None, "finish_reason": None}
    value = {"id": "u", "created": 1, "model": "up", "choices": [own | choice], **top}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


RICH: dict[str, dict[str, Callable[[str, int], dict[str, Any]]]] = {
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

        def render(values: Any, _own: bytes, choice: UpstreamChoice = choice) -> bytes:
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

"""The engine inside this process: the same words, checks and answers as over HTTP."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections import UserList
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, get_args, get_type_hints

import httpx
import numpy as np
import pytest
import torch

import engine as engine_module
from engine import ConfigError, Content, Delta, Engine, EngineError, Logprobs, ModelError, RequestError
from engine.config import EngineConfig
from engine.errors import CoreFailed
from engine.library import ChatOptions, EngineOptions, TextOptions
from engine.server.asking.fields import check_fields
from engine.server.preparing.pooling import Pooling
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError
from tests.engine.asking import QUESTION, answer, chat
from tests.engine.conftest import MODEL
from tests.real.processes import ROOT

pytestmark = pytest.mark.model

PROMPTS = ["The sky is", "Once upon a time there was"]


@pytest.fixture(scope="module")
def engine(default_model: Path) -> Iterator[Engine]:
    with Engine(default_model, dtype="float32", max_sequences=16, max_queue=8, num_blocks=256) as loaded:
        yield loaded


def running(engine: Engine) -> int:
    return engine._core._loaded.places_taken


async def test_a_chat_is_the_servers(engine: Engine, client: httpx.AsyncClient) -> None:
    wishes: dict[str, Any] = {"n": 3, "seed": 7, "temperature": 0.9, "top_p": 0.9, "max_tokens": 12}
    theirs, ours = await answer(client, "/v1/chat/completions", chat(**wishes)), engine.chat(QUESTION, **wishes)
    assert [choice.text for choice in ours.choices] == [c["message"]["content"] for c in theirs["choices"]]
    assert [choice.finish_reason for choice in ours.choices] == [c["finish_reason"] for c in theirs["choices"]]
    assert ours.usage.prompt == theirs["usage"]["prompt_tokens"]
    assert ours.usage.completion == theirs["usage"]["completion_tokens"]
    assert ours.choices[0].message["content"] == ours.choices[0].text
    assert ours.choices[0].message == theirs["choices"][0]["message"]


def test_an_answers_message_belongs_into_the_next_chat(engine: Engine) -> None:
    said = engine.chat(QUESTION, max_tokens=4, temperature=0).choices[0]
    again = {"role": "user", "content": "And now?"}
    plain = [*QUESTION, {"role": "assistant", "content": said.text}, again]
    assert engine.chat([*QUESTION, said.message, again], max_tokens=1).prompt == engine.chat(plain, max_tokens=1).prompt


def test_an_answer_is_held_to_a_form(engine: Engine) -> None:
    grammar = {"grammar": 'root ::= " " [1-9] [0-9]'}
    (answered,) = engine.generate("My age is", n=3, seed=1, max_tokens=8, structured_outputs=grammar)
    assert all(re.fullmatch(" [1-9][0-9]", choice.text) for choice in answered.choices)
    assert [choice.finish_reason for choice in answered.choices] == ["stop"] * 3
    with pytest.raises(RequestError, match="unknown name"):
        engine.generate("My age is", structured_outputs={"grammar": "start: nothing"})


async def test_texts_are_the_servers(engine: Engine, client: httpx.AsyncClient) -> None:
    wishes: dict[str, Any] = {"n": 2, "seed": 3, "max_tokens": 6, "logprobs": 2}
    body = {"model": MODEL, "prompt": PROMPTS, **wishes}
    theirs, ours = (await answer(client, "/v1/completions", body))["choices"], engine.generate(PROMPTS, **wishes)
    assert [choice.text for one in ours for choice in one.choices] == [choice["text"] for choice in theirs]
    told = [choice.logprobs or () for one in ours for choice in one.choices]
    assert [[one.own for one in of_choice] for of_choice in told] == [
        pytest.approx(choice["logprobs"]["token_logprobs"]) for choice in theirs
    ]
    assert [[choice.index for choice in one.choices] for one in ours] == [[0, 1]] * 2


def test_more_prompts_than_the_queue_takes(engine: Engine) -> None:
    """40 choices in all, of which 24 may be in the core at once; each is what it is by itself."""
    prompts = [[number, number + 1] for number in range(1, 41)]
    answers = engine.generate(prompts, seed=1, max_tokens=3, ignore_eos=True)
    assert all(one.usage.completion == 3 == len(one.choices[0].tokens) for one in answers)
    for number in (0, 17, 39):
        (alone,) = engine.generate(prompts[number : number + 1], seed=1, max_tokens=3, ignore_eos=True)
        assert alone.choices == answers[number].choices
    assert running(engine) == 0


def test_so_it_is_with_prompts_that_wait_for_their_grammar(engine: Engine) -> None:
    grammar = {"grammar": 'root ::= " " [1-9]'}
    answers = engine.generate(["My age is"] * 40, max_tokens=3, structured_outputs=grammar)
    assert all(re.fullmatch(" [1-9]", one.choices[0].text) for one in answers) and len(answers) == 40
    assert running(engine) == 0


def test_one_text_is_one_prompt_and_stops_are_cut(engine: Engine) -> None:
    [whole] = engine.generate("1, 2, 3, 4,", temperature=0, max_tokens=8)
    assert " 6" in whole.choices[0].text
    [cut] = engine.generate("1, 2, 3, 4,", temperature=0, max_tokens=8, stop=" 6")
    assert cut.choices[0].text == whole.choices[0].text.partition(" 6")[0]
    assert (cut.choices[0].finish_reason, cut.choices[0].stop_reason) == ("stop", " 6")
    *_, last = engine.stream("1, 2, 3, 4,", temperature=0, max_tokens=8, stop=" 6")
    assert (last.finish_reason, last.stop_reason) == ("stop", " 6")
    assert cut.choices[0].tokens == whole.choices[0].tokens[: len(cut.choices[0].tokens)]
    assert running(engine) == 0


def fold(pieces: Iterator[Delta], n: int) -> list[tuple[str, tuple[int, ...], str | None]]:
    texts = [""] * n
    tokens: list[tuple[int, ...]] = [()] * n
    reasons: list[str | None] = [None] * n
    for piece in pieces:
        assert reasons[piece.index] is None
        texts[piece.index] += piece.text
        tokens[piece.index] += piece.tokens
        reasons[piece.index] = piece.finish_reason
    return list(zip(texts, tokens, reasons, strict=True))


@pytest.mark.parametrize("prompt", ["The sky is", QUESTION])
def test_a_stream_is_the_answer_in_pieces(engine: Engine, prompt: Any) -> None:
    wishes: dict[str, Any] = {"n": 2, "seed": 5, "max_tokens": 10, "temperature": 0.8}
    whole = engine.chat(prompt, **wishes) if isinstance(prompt, list) else engine.generate(prompt, **wishes)[0]
    assert fold(engine.stream(prompt, **wishes), 2) == [(c.text, c.tokens, c.finish_reason) for c in whole.choices]


def test_a_stream_that_is_left_ends(engine: Engine) -> None:
    stream = engine.stream("The sky is", n=3, max_tokens=200, ignore_eos=True)
    next(stream)
    assert running(engine) == 3
    del stream
    assert running(engine) == 0


def test_a_stream_that_the_collector_drops_in_the_middle_of_a_step_ends(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the thread that runs the step: it must not wait for itself."""
    left = [engine.stream("The sky is", n=3, max_tokens=200, ignore_eos=True)]
    next(left[0])
    core = engine._core._loaded
    step = core.step

    def dropped() -> Any:
        left.clear()
        return step()

    monkeypatch.setattr(core, "step", dropped)
    [answer] = engine.generate("The sky is", max_tokens=3, ignore_eos=True)
    assert len(answer.choices[0].tokens) == 3
    assert running(engine) == 0


def test_a_core_that_has_failed_is_not_asked_again(default_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(default_model, num_blocks=64) as engine:

        def fails() -> Any:
            raise CoreFailed("3 steps in a row failed")

        monkeypatch.setattr(engine._core._loaded, "step", fails)
        for reason in ("3 steps in a row failed", "has failed"):
            with pytest.raises(EngineError, match=reason):
                engine.generate("The sky is", max_tokens=3)


def test_a_stream_and_other_requests_beside_it(engine: Engine) -> None:
    wishes: dict[str, Any] = {"seed": 11, "max_tokens": 12, "ignore_eos": True}
    [alone] = engine.generate("The sky is", **wishes)
    stream = engine.stream("The sky is", **wishes)
    pieces = [next(stream)]
    assert engine.generate("The sky is", **wishes) == [alone]
    assert fold(iter([*pieces, *stream]), 1)[0][0] == alone.choices[0].text


def test_threads_may_share_it(engine: Engine) -> None:
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(engine.generate, PROMPTS, n=2, seed=seed, max_tokens=8) for seed in range(3)]
        given = [one.result(60) for one in asked]
    assert given[1] == engine.generate(PROMPTS, n=2, seed=1, max_tokens=8)
    assert running(engine) == 0


@pytest.mark.parametrize(
    ("wishes", "param"),
    [
        ({"temperature": 9}, "temperature"),
        ({"n": 17}, "n"),
        ({"max_tokens": 5000}, "prompt"),
        ({"colour": "blue"}, "colour"),
        ({"stop": 5}, "stop"),
        ({"model": "other"}, "model"),
        ({"model": ""}, "model"),
        ({"temperature": float("nan")}, "temperature"),
        ({"choice_params": [{"top_p": float("inf")}]}, "choice_params"),
        ({"stop": {"a", "b"}}, "stop"),
        ({"stream": True}, "stream"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"logprobs": 30}, "logprobs"),
    ],
)
def test_what_cannot_be_asked(engine: Engine, wishes: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        engine.generate("a", **wishes)
    assert refused.value.param == param
    with pytest.raises(RequestError):
        engine.stream("a", **wishes)  # at once, not with the first piece


def test_any_container_and_number_that_means_the_same(engine: Engine) -> None:
    def tokens(prompt: Any, **wishes: Any) -> list[tuple[int, ...]]:
        return [one.choices[0].tokens for one in engine.generate(prompt, max_tokens=3, **wishes)]

    told = tokens([[1, 2, 3, 4]], seed=3, temperature=0.5)
    ids = [range(1, 5), [range(1, 5)], ((1, 2, 3, 4),), np.arange(1, 5), torch.arange(1, 5)]
    assert [tokens(prompt, seed=np.int64(3), temperature=np.float32(0.5)) for prompt in ids] == [told] * len(ids)
    (only,) = tokens("a", allowed_token_ids=range(504, 505), logit_bias=MappingProxyType({"504": 1.0}))
    assert set(only) == {504}
    chat = UserList([MappingProxyType(message) for message in QUESTION])
    assert engine.chat(QUESTION, max_tokens=1).prompt == engine.chat(chat, max_tokens=1).prompt
    nowhere = torch.empty(2, device="meta")
    for wrong in (b"abc", bytearray(b"abc"), memoryview(b"abc"), [b"abc"], {1, 2}, np.array([1.5]), nowhere):
        with pytest.raises(RequestError) as refused:
            tokens(wrong)
        assert refused.value.param == "prompt"


def test_half_of_a_surrogate_pair_is_refused_by_its_field(engine: Engine) -> None:
    """As `errors="surrogateescape"` leaves it in the text of a file that is not UTF-8. Both halves are a character."""
    chat = [{"role": "user", "content": "\udc80"}]
    asks: dict[str, Callable[[], object]] = {
        "prompt": lambda: engine.generate(["a", "b\udc80"], max_tokens=1),
        "messages": lambda: engine.chat(chat, max_tokens=1),
        "stop": lambda: engine.stream("a", stop="\ud83d"),
    }
    for param, ask in asks.items():
        with pytest.raises(RequestError, match=f"'{param}' contains half") as refused:
            ask()
        assert refused.value.param == param
    (pair,) = engine.generate("a \ud83d\ude42", max_tokens=1)
    assert pair.prompt == engine.generate("a \U0001f642", max_tokens=1)[0].prompt


@pytest.mark.parametrize(
    ("wishes", "said", "param"),
    [
        ({"allowed_token_ids": [2], "min_tokens": 2}, "'allowed_token_ids' and 'min_tokens'", "allowed_token_ids"),
        (
            {"choice_params": [{"allowed_token_ids": [2], "min_tokens": 2}]},
            "'choice_params.0.allowed_token_ids' and 'choice_params.0.min_tokens'",
            "choice_params.0.allowed_token_ids",
        ),
        ({"structured_outputs": {"regex": "[0-9"}}, "unclosed character class", "structured_outputs"),
    ],
)
def test_what_only_the_core_finds_to_be_impossible_names_its_field_too(
    engine: Engine, wishes: dict[str, Any], said: str, param: str
) -> None:
    wishes = {"max_tokens": 5, **wishes}
    for ask in (lambda: engine.generate(PROMPTS[0], **wishes), lambda: list(engine.stream(PROMPTS[0], **wishes))):
        with pytest.raises(RequestError, match=said) as refused:
            ask()
        assert refused.value.param == param
    assert running(engine) == 0


@pytest.mark.parametrize(
    ("wishes", "param"),
    [
        ({"stream": True}, "stream"),
        ({"echo": True}, "echo"),
        ({"colour": "blue", "taste": 1}, "colour"),
        ({"logprobs": 2, "top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_what_cannot_be_asked_of_a_chat(engine: Engine, wishes: dict[str, Any], param: str) -> None:
    for ask in (engine.chat, engine.stream):
        with pytest.raises(RequestError) as refused:
            ask(QUESTION, **wishes)
        assert refused.value.param == param
        assert all(f"'{name}'" in str(refused.value) for name in wishes)


def test_log_probabilities_of_a_prompt(engine: Engine) -> None:
    """Whichever way they are asked for, and whether or not the prompt comes back; its first token has none."""
    prompt = [[504, 6376, 314, 4461]]
    [echoed] = engine.generate(prompt, echo=True, logprobs=0, max_tokens=2, temperature=0)
    [told] = engine.generate(prompt, prompt_logprobs=0, max_tokens=2, temperature=0)
    [plain] = engine.generate(prompt, echo=True, max_tokens=2, temperature=0)
    [scored] = engine.generate(prompt, echo=True, logprobs=0, max_tokens=0)
    assert plain.prompt_logprobs is None
    for answered in (echoed, told, scored):
        assert answered.prompt == tuple(prompt[0])
        assert answered.prompt_logprobs is not None
        first, *rest = answered.prompt_logprobs
        assert first is None
        assert [one.own for one in rest if one] == pytest.approx(
            [one.own for one in (echoed.prompt_logprobs or ()) if one], abs=1e-4
        )
        assert len(rest) == 3
    assert len(plain.choices[0].tokens) == 2
    assert echoed.choices[0].tokens == told.choices[0].tokens == plain.choices[0].tokens
    assert len(echoed.choices[0].logprobs or ()) == 2
    assert (scored.choices[0].tokens, scored.choices[0].logprobs) == ((), ())
    assert echoed.choices[0].text == plain.choices[0].text == scored.choices[0].text + told.choices[0].text
    with pytest.raises(RequestError, match="streamed"):
        engine.stream("a", echo=True, logprobs=0)


def test_a_chats_logprobs_in_the_wires_words(engine: Engine) -> None:
    wishes: dict[str, Any] = {"max_tokens": 3, "temperature": 0}
    ours, wires = (
        engine.chat(QUESTION, logprobs=2, **wishes),
        engine.chat(QUESTION, logprobs=True, top_logprobs=2, **wishes),
    )
    assert ours.choices == wires.choices
    assert [len(one.top) for one in wires.choices[0].logprobs or ()] == [2, 2, 2]
    bare = engine.chat(QUESTION, logprobs=True, **wishes).choices[0].logprobs
    assert [one.top for one in bare or ()] == [()] * 3


def test_prompts_are_shared_behind_one_salt_only(engine: Engine) -> None:
    prompt = "A prompt that is longer than a block, and that no other test here computes. " * 3
    for salt, shared in (("mine", False), ("yours", False), ("mine", True)):
        [answered] = engine.generate(prompt, cache_salt=salt, max_tokens=1)
        assert (answered.usage.cached > 0) == shared


def test_embeddings_do_not_depend_on_company(engine: Engine) -> None:
    """That they are the model's hidden states is test_pooling's to show."""
    texts = ["The sky is blue.", "A longer text about " + "many animals and " * 40 + "one more."]
    for kind in ("mean", "last"):
        engine._pooling = Pooling(kind)
        both = torch.tensor(engine.embed(texts))
        torch.testing.assert_close(both.norm(dim=1), torch.ones(2))
        for text, vector in zip(texts, both, strict=True):
            torch.testing.assert_close(torch.tensor(engine.embed(text)[0]), vector, rtol=1e-3, atol=1e-4)
    assert running(engine) == 0
    engine._pooling = None
    with pytest.raises(RequestError, match="pooling"):
        engine.embed(texts)
    engine._pooling = Pooling("last")
    with pytest.raises(RequestError) as refused:
        engine.embed(["a", ""])
    assert refused.value.param == "input"


@pytest.mark.parametrize(("words", "dialect"), [(TextOptions, Dialect.COMPLETIONS), (ChatOptions, Dialect.CHAT)])
def test_every_word_is_one_of_the_wires(words: type[Any], dialect: Dialect) -> None:
    for name in get_type_hints(words):
        try:
            check_fields(dialect, {name: "a value"})  # refuses what the engine does not read
        except ApiError as refused:
            assert refused.code == "invalid_type", name


@pytest.mark.parametrize("words", [TextOptions, ChatOptions])
def test_every_word_may_be_none(engine: Engine, words: type[Any]) -> None:
    assert all(NoneType in get_args(hint) for hint in get_type_hints(words).values())
    wishes: dict[str, Any] = {"max_tokens": 2, "temperature": 0}
    nothing = {name: None for name in get_type_hints(words) if name not in wishes}
    prompt = QUESTION if words is ChatOptions else "a"
    assert list(engine.stream(prompt, **wishes, **nothing)) == list(engine.stream(prompt, **wishes))


def test_no_model_and_no_engine(default_model: Path, tmp_path: Path, engine: Engine) -> None:
    with pytest.raises(ModelError):
        Engine(tmp_path / "nowhere")
    shared = engine._core
    core, shared._core = shared._core, None
    try:
        with pytest.raises(EngineError, match="closed"):
            engine.generate("a")
    finally:
        shared._core = core


def test_adapters_are_a_mapping_as_in_the_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every adapter needs a unique name"):
        Engine(tmp_path, adapters={"": "folder"})
    with pytest.raises(ConfigError, match="every adapter needs a unique name"):
        Engine(tmp_path, adapters={"policy": "folder"}, served_model_name="policy")
    for wrong in ({"policy": 3}, {3: "folder"}, None, 5, "ab"):
        with pytest.raises(ConfigError, match="adapters must be pairs of a name and a folder"):
            Engine(tmp_path, adapters=wrong)  # type: ignore[arg-type]
    with pytest.raises(ModelError):
        Engine(tmp_path, adapters={"policy": tmp_path / "folder"})


def test_the_engines_options_are_those_of_its_settings(tmp_path: Path) -> None:
    hints = get_type_hints(EngineConfig) | {"adapters": get_type_hints(EngineOptions)["adapters"]}
    assert get_type_hints(EngineOptions) == {name: hint for name, hint in hints.items() if name != "model"}
    with pytest.raises(ConfigError, match="the engine has no option 'dtpye'"):
        Engine(tmp_path, dtpye="float32")  # type: ignore[call-arg]


def test_what_the_answers_fields_hold_has_names(engine: Engine) -> None:
    stream = engine.stream("a", max_tokens=3, logprobs=1, ignore_eos=True)
    piece = next(stream)
    stream.close()
    assert all(isinstance(part, Content) for part in piece.parts)
    assert piece.logprobs and all(isinstance(one, Logprobs) for one in piece.logprobs)
    assert running(engine) == 0


@pytest.mark.parametrize(
    ("imported", "absent"),
    [("engine", "torch aiohttp tokenizers pydantic"), ("engine.library", "aiohttp")],
)
def test_importing_it_loads_no_more_than_it_needs(imported: str, absent: str) -> None:
    code = f"import sys, {imported}; print(*[name for name in {absent.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


def test_its_names_can_be_listed() -> None:
    assert {"Engine", "RequestError", *engine_module.__all__} <= set(dir(engine_module))


def test_the_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, default_model: Path) -> None:
    monkeypatch.setenv("MODEL", str(default_model))
    monkeypatch.setattr(sys, "argv", ["library.py", "Name an animal."])
    runpy.run_path(str(ROOT / "examples" / "library.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert sorted(re.findall(r"^choice (\d)", shown, re.MULTILINE)) == ["0", "1", "2", "3"]
    assert len(re.findall(r"mean log probability -\d", shown)) == 2

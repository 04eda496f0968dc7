"""The process that tries grammars: what passes, what is refused with which words, what it does not survive."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import tokenizers

from engine.messages import Ready
from engine.server.asking.structure import Structure, grammar_of, json_rule, regex_rule
from engine.server.preparing.compiling import Compiling
from engine.text.detokenizer import TokenBytes
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import ApiError
from tests.engine.test_grammar import END, VOCABULARY, tokenizer
from tests.fakes.runner import ready

READY: Ready = replace(ready(vocab_size=VOCABULARY), eos_tokens=frozenset({END}))


def listed(**entry: str) -> Structure:
    return Structure(json.dumps({"grammars": [entry]}), "grammar")


def pattern(text: str) -> Structure:
    return Structure(grammar_of(regex_rule(text)), "guided_regex")


def schema(value: object) -> Structure:
    return Structure(grammar_of(json_rule(value, "response_format")), "response_format")  # type: ignore[arg-type]


def conjunction(patterns: int) -> Structure:
    """A string that must match all of some patterns: work that doubles with each."""
    return schema({"allOf": [{"type": "string", "pattern": f"a.{{{10 + i}}}"} for i in range(patterns)]})


def chain(levels: int) -> Structure:
    """A schema that refers to one that refers to one ..."""
    links = {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(levels)}
    return schema({"$ref": "#/$defs/a0", "$defs": {**links, f"a{levels}": {"type": "null"}}})


@asynccontextmanager
async def compiling(**bounds: Any) -> AsyncIterator[Compiling]:
    """Trials, with bounds that no machine is too slow for unless one is given."""
    backend = tokenizers.Tokenizer.from_str(tokenizer())
    made = Compiling(
        Tokenizer(backend, TokenBytes.of(backend), None, None),
        READY,
        **{"trial_seconds": 60.0, "token_seconds": 60.0, "wall_seconds": 600.0, **bounds},
    )
    try:
        yield made
    finally:
        await made.close()


async def refusal(by: Compiling, structure: Structure) -> str:
    with pytest.raises(ApiError) as error:
        await by.check(structure)
    assert (error.value.status, error.value.param) == (400, structure.field)
    return error.value.message


async def test_what_passes_comes_back_and_gbnf_comes_back_as_lark() -> None:
    async with compiling() as by:
        plain = Structure(grammar_of(regex_rule("[ab]+")), "guided_regex")
        assert await by.check(plain) == plain
        for _ in range(2):
            passed = await by.check(listed(gbnf='root ::= letter+ "1"\nletter ::= [abc]'))
            (entry,) = json.loads(passed.grammar)["grammars"]
            assert list(entry) == ["lark_grammar"]
            assert re.search(r"^start: ", entry["lark_grammar"], re.MULTILINE)


# 2 to the 50th letters, all of them given: found only when the letter before them is written.
DOUBLING = "\n".join([*(f"a{i}: a{i + 1} a{i + 1}" for i in range(50)), 'a50: "b"'])
REFUSED = [
    (
        schema({"type": "array", "uniqueItems": True}),
        "Invalid 'response_format': failed to compile JSON schema: Unimplemented keys: [\"uniqueItems\"].",
    ),
    (listed(gbnf="root ::= ("), "Invalid 'grammar': Expected ')' at line 1, 'root ::= (' ^ ''."),
    (listed(gbnf="root ::= " + "(" * 5000), "Invalid 'grammar': it is nested too deeply."),
    (listed(lark_grammar='start: "a" <nobody>'), "Invalid 'grammar': at 1(8): unknown special token: "),
    (listed(lark_grammar=f'start: ("a" a0)?\n{DOUBLING}'), "Invalid 'grammar': parser error: Too many items"),
    (listed(lark_grammar="x" * (1 << 20)), "Invalid 'grammar': it is longer than 262144 bytes."),
]


async def test_a_text_that_has_passed_is_not_tried_again() -> None:
    async with compiling() as by:
        plain = Structure(grammar_of(regex_rule("[ab]+")), "guided_regex")
        await by.check(plain)
        await by.close()
        assert await by.check(plain) == plain
        assert by._process is None


async def test_a_process_that_has_ended_while_idle_is_no_fault_of_the_next_grammar() -> None:
    async with compiling() as by:
        await by.check(Structure(grammar_of(regex_rule("a+")), "guided_regex"))
        assert by._process is not None
        by.kill()
        await by._process.wait()
        await by.check(Structure(grammar_of(regex_rule("b+")), "guided_regex"))


async def test_what_cannot_be_compiled_or_followed_is_refused() -> None:
    async with compiling() as by:
        for structure, message in REFUSED:
            assert (await refusal(by, structure)).startswith(message)


async def test_what_the_process_dies_of_is_refused_and_the_next_grammar_passes() -> None:
    fine = Structure(grammar_of(regex_rule("[ab]+")), "guided_regex")
    async with compiling() as by:
        assert await refusal(by, chain(2500)) == "Invalid 'response_format': it is too complex to be compiled."
        assert await by.check(fine) == fine


async def test_what_takes_too_long_is_refused_and_the_next_grammar_passes() -> None:
    fine = Structure(grammar_of(regex_rule("[ab]+")), "guided_regex")
    async with compiling(trial_seconds=1.5) as by:
        said = "Invalid 'response_format': it is too complex: compiling takes more than 1.5 s of CPU time."
        assert await refusal(by, conjunction(40)) == said
        assert await by.check(fine) == fine


async def test_what_takes_too_long_for_one_token_is_refused() -> None:
    async with compiling(token_seconds=0.0) as by:
        said = "Invalid 'guided_regex': it is too complex: computing one token takes too long."
        assert await refusal(by, Structure(grammar_of(regex_rule("[ab]+")), "guided_regex")) == said


async def test_a_process_without_memory_is_not_the_clients_fault() -> None:
    async with compiling(memory=32 << 20) as by:
        with pytest.raises(ApiError) as error:
            await by.check(Structure(grammar_of(regex_rule("a")), "guided_regex"))
        assert error.value.status == 503


async def test_a_process_that_cannot_be_started_is_not_the_clients_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async def started(*_: str, **__: Any) -> asyncio.subprocess.Process:
        raise BlockingIOError("Resource temporarily unavailable")

    async with compiling() as by:
        with monkeypatch.context() as full:
            full.setattr(asyncio, "create_subprocess_exec", started)
            with pytest.raises(ApiError) as error:
                await by.check(pattern("a"))
            assert (error.value.status, error.value.headers["retry-after"]) == (503, "5")
        assert await by.check(pattern("a")) == pattern("a")


@asynccontextmanager
async def held_up(by: Compiling) -> AsyncIterator[None]:
    """A machine that does everything but try grammars."""
    await by.check(pattern("a"))
    assert by._process is not None
    by._process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        if by._process is not None:
            by._process.send_signal(signal.SIGCONT)


async def test_a_machine_that_is_too_slow_is_not_the_clients_fault() -> None:
    async with compiling() as by:
        async with held_up(by):
            by._wall_seconds = 0.05
            with pytest.raises(ApiError) as error:
                await by.check(pattern("b"))
            assert (error.value.status, error.value.headers["retry-after"]) == (503, "5")
        by._wall_seconds = 600.0
        assert (await by.check(pattern("b"))).grammar == pattern("b").grammar


async def test_a_process_that_somebody_else_kills_is_not_the_clients_fault() -> None:
    """The kernel, because memory runs out: it takes this process first."""
    async with compiling() as by:
        async with held_up(by):
            assert by._process is not None
            assert Path(f"/proc/{by._process.pid}/oom_score_adj").read_text() == "1000\n"
            trial = asyncio.ensure_future(by.check(pattern("b")))
            for _ in range(20):
                await asyncio.sleep(0)
            by._process.kill()
            with pytest.raises(ApiError) as error:
                await trial
            assert (error.value.status, error.value.headers["retry-after"]) == (503, "5")
        assert await by.check(pattern("b")) == pattern("b")


async def test_neither_is_one_that_is_killed_in_the_middle_of_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of the process, a shell that answers the first grammar as it must, and dies over the next answer."""
    script = """read settings; read first; echo '{"grammar": ""}'; read next; printf '{"grammar": "half'; kill -9 $$"""
    start = asyncio.create_subprocess_exec

    async def started(*_: str, **settings: Any) -> asyncio.subprocess.Process:
        return await start("sh", "-c", script, **settings)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    async with compiling() as by:
        with pytest.raises(ApiError) as raised:
            await by.check(pattern("[ab]+"))
        assert (raised.value.status, by._process) == (503, None)


async def test_what_has_passed_does_not_wait_and_few_new_ones_may() -> None:
    async with compiling() as by:
        async with held_up(by):
            waiting = [asyncio.ensure_future(by.check(pattern("b" * (i + 1)))) for i in range(64)]
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(by._trials) == len(waiting)
            assert await by.check(pattern("a")) == pattern("a")
            with pytest.raises(ApiError) as error:
                await by.check(pattern("c"))
            assert (error.value.status, error.value.headers["retry-after"]) == (429, "5")
            assert not any(one.done() for one in waiting)
        assert await asyncio.gather(*waiting) == [pattern("b" * (i + 1)) for i in range(64)]
        assert await by.check(pattern("c")) == pattern("c")
        assert not by._trials


async def test_a_new_grammar_is_tried_once_for_all_who_ask_for_it_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(wraps=Compiling._ask)
    monkeypatch.setattr(Compiling, "_ask", lambda *of: asked(*of))
    async with compiling() as by:
        together = await asyncio.gather(*(by.check(pattern("a")) for _ in range(200)))
        assert together == 200 * [pattern("a")]
        assert asked.call_count == 2, "one at the start of the process"
        refused = await asyncio.gather(*(by.check(REFUSED[0][0]) for _ in range(3)), return_exceptions=True)
        assert [error.status for error in refused if isinstance(error, ApiError)] == [400, 400, 400]
        assert asked.call_count == 3 and not by._trials


async def test_who_leaves_takes_no_answer_from_others() -> None:
    async with compiling() as by:
        await by.check(pattern("a"))
        leaving, staying = (asyncio.ensure_future(by.check(pattern("b"))) for _ in range(2))
        for _ in range(3):
            await asyncio.sleep(0)
        leaving.cancel()
        assert await staying == pattern("b")
        async with held_up(by):
            gone = asyncio.ensure_future(by.check(pattern("c")))
            await asyncio.sleep(0.01)
            (trial,) = by._trials.values()
            gone.cancel()
            await asyncio.wait([gone, trial.task], timeout=10)
            assert trial.task.cancelled() and not by._trials
        assert await by.check(pattern("c")) == pattern("c"), "another trial, as that of the first request is given up"


async def test_a_client_that_leaves_takes_its_answer_along() -> None:
    async with compiling() as by:
        await by.check(Structure(grammar_of(regex_rule("a")), "guided_regex"))
        leaving = asyncio.ensure_future(by.check(conjunction(40)))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(by.check(Structure(grammar_of(regex_rule("b")), "guided_regex")))
        for _ in range(20):
            await asyncio.sleep(0)
        leaving.cancel()
        assert (await waiting).grammar == grammar_of(regex_rule("b"))
        with pytest.raises(asyncio.CancelledError):
            await leaving

"""Grammars in the core: who is constrained, who is not, and what happens beside them. No model, a real KV cache."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from engine.channel import CoreClient
from engine.config import EngineConfig
from engine.core import Core
from engine.messages import Abort, Add, Sampling, StepDone
from engine.server.asking.structure import any_rule, grammar_of, regex_rule, text_rule
from tests.engine.test_grammar import END, TOKENS, VOCABULARY, tokenizer
from tests.fakes.runner import HashRunner, expected, ready

PROMPT = (5, 6, 7, 8, 9, 1)
LETTERS = grammar_of(regex_rule("[ab]{30,40}12"))
WORDS = grammar_of(any_rule([text_rule("abcabc"), text_rule("cc1")]))


class Deaf(HashRunner):
    """A runner that does not know of masks."""

    def submit(self, batch):  # type: ignore[no-untyped-def]
        return super().submit(replace(batch, masks={}))


def make(*, blocks: int = 256, kind: type[HashRunner] = HashRunner) -> Core:
    about = replace(ready(blocks=blocks, vocab_size=VOCABULARY), eos_tokens=frozenset({END}))
    config = EngineConfig("none", max_batch_tokens=64, max_sequences=16, share_gate=0, block_size=4)
    return Core(config, kind(about), tokenizer())


def add(group: int, grammar: str | None, n: int = 1, seed: int = 0, new: int = 60) -> Add:
    stop = frozenset[int]() if grammar is None else frozenset({END})
    return replace(Add.alike(group, PROMPT, n, seed, new, Sampling(), stop), grammar=grammar)


def texts(core: Core) -> dict[tuple[int, int], str]:
    """What each choice comes to, and how it ends, as "text/reason"; nothing may be left behind, and none may fail."""
    found: dict[tuple[int, int], str] = {}
    while core.has_work:
        done = core.step()
        assert not done.failed
        for drawn in done.tokens:
            text = "" if drawn.token >= len(TOKENS) else TOKENS[drawn.token]
            key = drawn.group, drawn.choice
            found[key] = found.get(key, "") + text + (f"/{drawn.finish}" if drawn.finish else "")
    assert core.stats().blocks_used == 0 and not core.grammars._followers
    return found


def test_choices_match_the_grammar_and_equal_the_single_requests() -> None:
    core = make()
    core.add(add(1, LETTERS, n=4, seed=7))
    together = texts(core)
    assert len(set(together.values())) == 4
    for (_, choice), text in together.items():
        assert set(text.removesuffix("12/stop")) <= {"a", "b"}
        assert text.endswith("12/stop")
        core.add(add(2, LETTERS, seed=7 + choice))
        assert texts(core) == {(2, 0): text}


def test_a_sequence_that_is_computed_again_keeps_its_place_in_the_grammar() -> None:
    core = make()
    core.add(add(1, LETTERS, n=4))
    wanted = texts(core)
    small = make(blocks=24)
    small.add(add(1, LETTERS, n=4))
    assert texts(small) == wanted
    assert small.stats().preemptions > 0


def test_free_choices_beside_constrained_ones_are_what_they_are_alone() -> None:
    core = make()
    core.add(add(1, LETTERS, n=2))
    core.add(add(2, None, n=2, seed=3, new=20))
    core.add(add(3, WORDS, n=3))
    drawn: dict[int, list[int]] = {0: [], 1: []}
    while core.has_work:
        for token in core.step().tokens:
            if token.group == 2:
                drawn[token.choice].append(token.token)
    assert drawn == {choice: expected(PROMPT, 3 + choice, 20, VOCABULARY) for choice in range(2)}


def test_a_choice_that_is_cut_by_its_limit_says_so() -> None:
    core = make()
    core.add(add(1, WORDS, n=3, new=1))
    assert {text.partition("/")[2] for text in texts(core).values()} == {"length"}


def failures(core: Core) -> list[tuple[int, str, str]]:
    found: list[tuple[int, str, str]] = []
    while core.has_work:
        found += [(failed.group, failed.kind, failed.message) for failed in core.step().failed]
    assert (core.stats().blocks_used, core.stats().waiting) == (0, 0)
    return found


def test_a_grammar_that_cannot_be_compiled_is_refused_and_harms_nobody() -> None:
    core = make()
    core.add(add(1, WORDS))
    core.step()
    core.add(add(2, grammar_of("nothing")))
    assert failures(core) == [(2, "grammar", 'the grammar cannot be used: at 1(8): unknown name: "nothing"')]
    assert core.stats().tokens_drawn > 1


def test_without_a_thread_to_compile_it_a_grammar_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make()
    core.add(add(1, WORDS))
    core.step()

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("concurrent.futures.ThreadPoolExecutor.submit", no_thread)
        core.add(add(2, LETTERS))
        why = "the grammar cannot be used: no thread to compile it can be started now"
        assert failures(core) == [(2, "grammar", why)]
    core.add(add(3, LETTERS))
    assert failures(core) == []


def test_a_token_against_the_grammar_ends_its_group_and_no_other() -> None:
    core = make(kind=Deaf)
    core.add(add(1, WORDS, n=2))
    core.add(add(2, None, n=2, new=5))
    ended: dict[int, int] = {}
    failed = []
    while core.has_work:
        done = core.step()
        failed += [(one.group, one.kind) for one in done.failed]
        assert not {drawn.group for drawn in done.tokens} & {group for group, _ in failed}
        for drawn in done.tokens:
            ended[drawn.group] = ended.get(drawn.group, 0) + bool(drawn.finish)
    assert (failed, ended.get(2)) == ([(1, "grammar")], 2)
    assert core.stats().blocks_used == 0 and not core.grammars._followers


def slow() -> tuple[Core, threading.Event, threading.Event]:
    """A core whose grammars are compiled once `go` is set, and `awake` when one has been."""
    go, awake = threading.Event(), threading.Event()
    core = make()
    core = Core(
        EngineConfig("none", max_batch_tokens=64, max_sequences=4, max_queue=0, share_gate=0, block_size=4),
        HashRunner(core.ready),
        tokenizer(),
        awake.set,
    )
    compiling = core.grammars._compile
    core.grammars._compile = lambda grammar: (go.wait(60), compiling(grammar))[1]  # type: ignore[method-assign]
    return core, go, awake


def test_others_go_on_while_a_grammar_is_compiled() -> None:
    core, go, awake = slow()
    core.add(add(1, WORDS, n=2))
    assert not core.has_work
    core.add(add(2, None, n=2, new=5))
    assert [core.step().stats.waiting for _ in range(6)][:2] == [2, 2]
    assert not core.has_work
    core.add(add(3, None, n=3))
    ((failed),) = core.step().failed
    assert (failed.group, failed.kind) == (3, "busy")  # those that wait for a grammar count
    go.set()
    assert awake.wait(60)
    assert {text.partition("/")[2] for text in texts(core).values()} == {"stop"}


@pytest.mark.parametrize(("choices", "left"), [(None, set()), ((0, 2), {1}), ((0, 1, 2), set())])
def test_choices_can_be_ended_while_their_grammar_is_compiled(choices: tuple[int, ...] | None, left: set[int]) -> None:
    core, go, awake = slow()
    core.add(add(1, WORDS, n=3))
    core.abort(Abort(1, choices))
    assert core.step().stats.waiting == len(left)
    go.set()
    assert awake.wait(60)
    assert {choice for _, choice in texts(core)} == left


async def test_a_core_that_sleeps_wakes_when_a_grammar_is_compiled() -> None:
    config = EngineConfig("hash", max_batch_tokens=64, max_sequences=16, share_gate=0, block_size=4)
    client = await CoreClient.start(config, "tests.fakes.runner:load", tokenizer())
    try:
        client.add(replace(Add.alike(1, PROMPT, 1, 0, 9, Sampling(), frozenset({0})), grammar=grammar_of('"c" "2"')))
        text = ""
        done: StepDone
        async for done in client:
            text += "".join([f"{drawn.token}/{drawn.finish} " for drawn in done.tokens])
            if "stop" in text:
                break
        assert text == "2/None 9/None 0/stop "
    finally:
        await client.close()

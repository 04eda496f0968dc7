"""Measures 6 to 11: the engine in this process, compared with itself and with transformers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from bench.gpu import peers
from bench.gpu.cases import ModelShape, peak_blocks
from bench.gpu.layer import UNSHARED
from bench.gpu.random_models import twin
from bench.gpu.run import Run
from bench.gpu.serving import Answers, Model, Served, apart, prompt, request
from bench.gpu.table import Result
from bench.roofline import PEAK
from engine.messages import Add

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    Way = Callable[[PreTrainedModel, tuple[int, ...], int, int], int]


def step(run: Run) -> None:
    """Measure 6, one model after the other."""
    for key, shape in (("6.small", run.plan.small), ("6.large", run.plan.large)):
        run.attempt([key], partial(_step, run, key, shape))


def _step(run: Run, key: str, shape: ModelShape) -> Iterator[Result]:
    """Time the steps of one sequence, from result to result; the bytes are those of the middle step."""
    lengths = run.plan.lengths
    length, new = lengths.short, lengths.new
    served = Model.of(run, shape).runner(run, length + new + run.plan.block)
    served.answer([request(prompt(shape, length, 0), 1, 3)])
    answers = served.answer([request(prompt(shape, length, 1), 1, new)])
    taken = statistics.median(answers.steps)
    moved = shape.weight_bytes + (length + new // 2) * shape.token_bytes
    yield Result(
        key,
        100 * moved / PEAK / taken,
        f"{taken * 1e3:.2f} ms a token, {1 / taken:.0f} tokens/s",
        detail={"least": min(answers.steps), "most": max(answers.steps), "bytes": moved, "steps": len(answers.steps)},
    )


def requests(run: Run, parts: frozenset[str]) -> None:
    """Measures 7, 8 and 10, on the small model."""
    lengths = run.plan.lengths

    @cache
    def served() -> Served:
        room = lengths.wide * (lengths.middle + lengths.new + 2 * run.plan.block)
        made = Model.of(run, run.plan.small).runner(run, room)
        made.answer([request(prompt(run.plan.small, lengths.short, 0), 2, 2)])
        return made

    if "7" in parts:
        run.attempt(["7.wide"], lambda: _throughput(run, served(), "7.wide", lengths.wide))
        run.attempt(["7.widest"], lambda: _throughput(run, served(), "7.widest", lengths.widest))
    if "10" in parts:
        run.attempt(["10.blocks"], lambda: _blocks(run, served()))
    if "8" in parts:
        run.attempt(["8.cold", "8.unaware", "8.cached"], lambda: _together(run, served()))


def _throughput(run: Run, served: Served, key: str, n: int) -> Iterator[Result]:
    """Measure tokens per second of one request over its whole time, its prefill included."""
    lengths, shape = run.plan.lengths, run.plan.small
    rounds = [
        served.answer([request(prompt(shape, lengths.short, seed), n, lengths.new, seed=seed)])
        for seed in range(lengths.rounds)
    ]
    taken = statistics.median([one.seconds for one in rounds])
    middle = statistics.median(rounds[0].steps)
    yield Result(
        key,
        n * lengths.new / taken,
        f"first token after {rounds[0].first * 1e3:.0f} ms, then {middle * 1e3:.2f} ms a step",
        detail={"seconds": [one.seconds for one in rounds], "first": [one.first for one in rounds], "step": middle},
    )


def _blocks(run: Run, served: Served) -> Iterator[Result]:
    lengths, shape = run.plan.lengths, run.plan.small
    length, n, new = lengths.even + lengths.beyond, lengths.widest, lengths.extra
    answers = served.answer([request(prompt(shape, length, 3), n, new)])
    bound = peak_blocks(length, n, new, run.plan.block)
    yield Result("10.blocks", answers.peak_blocks, f"prompt {length}, {new} new", goal=bound)


def _together(run: Run, served: Served) -> Iterator[Result]:
    """Compare one request for n choices with n requests for one choice, alternating; each round has a new prompt."""
    lengths, shape, n = run.plan.lengths, run.plan.small, run.plan.lengths.wide
    ways: dict[str, dict[str, object]] = {
        "8.cold": {"prefix_cache": False},
        "8.unaware": {"share_gate": UNSHARED},
        "8.cached": {},
    }
    together: list[float] = []
    separate: dict[str, list[float]] = {key: [] for key in ways}
    for seed in run.rounds(range(lengths.rounds)):
        for key, settings in ways.items():
            tokens = prompt(shape, lengths.middle, 10 + seed)
            one = served.answer([request(tokens, n, lengths.new)], prefix_cache=False)
            together.append(one.seconds)
            separate[key].append(served.answer(apart(tokens, n, lengths.new), **settings).seconds)
    ours = statistics.median(together)
    for key, seconds in separate.items():
        theirs = statistics.median(seconds)
        detail = {"together": together, "separate": seconds}
        yield Result(key, theirs / ours, f"{ours:.2f} s against {theirs:.2f}", detail=detail)


def against_transformers(run: Run) -> None:
    """Measure 9."""
    run.attempt(["9.generate", "9.batching"], partial(_peers, run))


def _peers(run: Run) -> Iterator[Result]:
    """Compare one request with the two ways of transformers, alternating, with the same weights."""
    lengths, shape = run.plan.lengths, run.plan.small
    room = lengths.short + lengths.wide * (lengths.peer_new + 2 * run.plan.block)
    served = Model.of(run, shape).runner(run, room)
    theirs = twin(shape, run.clock.dtype, run.clock.device)
    batching = partial(peers.batching, blocks=64 if run.clock.dry else None)
    ways: dict[str, Way] = {"9.generate": peers.generate, "9.batching": batching}
    for key, way in ways.items():
        try:
            rounds = list(_rounds(run, served, theirs, way))
        except Exception as error:  # report a peer's failure and measure the other one
            yield Result(key, None, f"{type(error).__name__}: {error}"[:160])
            continue
        ours, taken = zip(*(rounds[lengths.warm :] or rounds), strict=True)
        middle, peer = statistics.median(ours), statistics.median(taken)
        yield Result(key, peer / middle, f"{middle:.3f} s against {peer:.3f}", detail={"ours": ours, "theirs": taken})
    peers.end_batching(theirs)


def _rounds(run: Run, served: Served, theirs: PreTrainedModel, way: Way) -> Iterator[tuple[float, float]]:
    """Yield the seconds of the rounds, those first that do not count."""
    for seed in run.rounds(range(-run.plan.lengths.warm, run.plan.lengths.rounds)):
        yield _against(run, served, theirs, way, seed)


def _against(run: Run, served: Served, theirs: PreTrainedModel, way: Way, seed: int) -> tuple[float, float]:
    """Return the seconds of one round, ours and the peer's, on a prompt that is new to both."""
    lengths, clock = run.plan.lengths, run.clock
    n, new, tokens = lengths.wide, lengths.peer_new, prompt(run.plan.small, lengths.short, 20 + seed)
    answers = served.answer([request(tokens, n, new)], prefix_cache=False)
    clock.wait()
    began = clock.now()
    drawn = way(theirs, tokens, n, new)
    clock.wait()
    seconds = clock.now() - began
    if drawn != n * new:
        raise RuntimeError(f"{drawn} tokens came of {n * new}")
    return answers.seconds, seconds


def deterministic(run: Run) -> None:
    """Measure 11."""
    keys = ["11.bits", "11.single", "11.narrow", "11.wide", "11.widest"]
    run.attempt(keys, partial(_deterministic, run))


def _deterministic(run: Run) -> Iterator[Result]:
    """Compare choices with single requests, alone and beside others; then time both modes, alternating."""
    lengths, shape = run.plan.lengths, run.plan.small
    model = Model.of(run, shape)
    room = lengths.widest * (lengths.new + 3 * run.plan.block) + 4 * lengths.short
    plain, exact = (model.runner(run, room, deterministic=wanted) for wanted in (False, True))
    yield _bits(run, exact)
    for key, n in (
        ("11.single", 1),
        ("11.narrow", lengths.narrow),
        ("11.wide", lengths.wide),
        ("11.widest", lengths.widest),
    ):
        if run.left <= 0:
            yield Result(key, None, "no time was left")
            continue
        seconds: dict[str, list[float]] = {"plain": [], "exact": []}
        for seed in run.rounds(range(-lengths.warm, lengths.rounds)):
            for name, served in (("plain", plain), ("exact", exact)):
                one = served.answer(
                    [request(prompt(shape, lengths.short, 30 + seed), n, lengths.new)], prefix_cache=False
                )
                seconds[name].append(one.seconds)
        seconds = {name: taken[lengths.warm :] or taken for name, taken in seconds.items()}
        ours, base = (statistics.median(seconds[name]) for name in ("exact", "plain"))
        yield Result(key, 100 * (ours / base - 1), f"{ours:.3f} s against {base:.3f}", detail=seconds)


def _bits(run: Run, served: Served) -> Result:
    """Compare tokens and their log probabilities, bit for bit."""
    lengths, shape = run.plan.lengths, run.plan.small
    n, new, tokens = lengths.wide, lengths.extra, prompt(shape, lengths.short, 40)
    whole = served.answer([request(tokens, n, new, seed=5, logprobs=0)])
    chosen = range(n - 1, -1, -max(n // lengths.samples, 1))
    equal, tried = 0, 0
    for i in chosen:
        single = request(tokens, 1, new, seed=5 + i, logprobs=0)
        for company in ([], _company(run)):
            adds = [*company[:1], replace(single, group=9), *company[1:]]
            equal += _same(served.answer(adds), (9, 0), whole, (0, i))
            tried += 1
    return Result("11.bits", 100 * equal / tried, f"{equal} of {tried}")


def _company(run: Run) -> list[Add]:
    """Return other requests, of other widths and lengths, to be added before and after the one under test."""
    lengths, shape = run.plan.lengths, run.plan.small
    wide = request(prompt(shape, lengths.short // 3, 50), lengths.narrow, lengths.extra // 2, group=1)
    return [wide, request(prompt(shape, lengths.short // 2, 51), 1, lengths.extra, group=2)]


def _same(one: Answers, here: tuple[int, int], other: Answers, there: tuple[int, int]) -> bool:
    return one.tokens[here] == other.tokens[there] and one.logprobs[here] == other.logprobs[there]

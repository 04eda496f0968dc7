"""The engine in this process: a core over a device's runner, without a server, with a model of random weights."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench.gpu.cases import ModelShape
from bench.gpu.clocks import Clock
from bench.gpu.random_models import RandomCheckpoint
from bench.gpu.run import Run
from engine.attention.cache import KvCache
from engine.batch import Batch
from engine.config import EngineConfig
from engine.core import Core, Pending, Runner
from engine.device.graphs import cuda_recorder
from engine.device.runner import DeviceRunner
from engine.messages import Add, Logprobs, Ready, Sampling
from engine.models.llama import Decoder


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder on the device, for any number of runners; `shape`: what it was made from."""

    shape: ModelShape
    decoder: Decoder

    @classmethod
    def of(cls, run: Run, shape: ModelShape) -> Model:
        """Draw the weights and return the model."""
        lengths = run.plan.lengths
        longest = max(lengths.middle + lengths.new, lengths.even + lengths.beyond + lengths.extra) + 1
        return cls(shape, Decoder(RandomCheckpoint.of(shape), run.clock.dtype, longest, run.clock.device))

    def runner(self, run: Run, tokens: int, **settings: Any) -> Served:
        """Return a runner whose cache holds `tokens` tokens, set up as `python -m engine` does but for `settings`."""
        size, lengths = run.plan.block, run.plan.lengths
        settings = {"max_batch_tokens": 8192 + lengths.widest, "max_sequences": lengths.widest} | settings
        config = EngineConfig(
            "", num_blocks=-(-tokens // size), block_size=size, kernels="triton", device=_device(run.clock), **settings
        )
        cache = KvCache(self.decoder.attention, config.num_blocks or 0, size, run.clock.dtype, run.clock.device)
        record = cuda_recorder() if config.cuda_graphs and not run.clock.dry else None
        runner = DeviceRunner(config, self.decoder, cache, overlaps=not run.clock.dry, record=record)
        if not run.clock.dry:
            runner.warm_up(config)
        return Served(config, runner, run.clock)


def _device(clock: Clock) -> Any:
    return "cpu" if clock.dry else "cuda"


@dataclass(slots=True)
class Answers:
    """What the steps returned, by (group, choice), and when."""

    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    logprobs: dict[tuple[int, int], list[Logprobs | None]] = field(default_factory=dict)
    prompt: dict[int, tuple[Logprobs | None, ...] | None] = field(default_factory=dict)
    """Log probabilities of the prompts, by group."""
    seconds: float = 0.0
    """Seconds from the first add to the last token."""
    first: float = 0.0
    """Seconds to the end of the step that returned the last group's first tokens."""
    steps: list[float] = field(default_factory=list)
    """Seconds of each step after that one."""
    peak_blocks: int = 0

    @property
    def drawn(self) -> int:
        """The number of tokens of all choices."""
        return sum([len(tokens) for tokens in self.tokens.values()])


@dataclass(slots=True)
class Watched:
    """A runner that passes steps on to another one; subclasses note something of them."""

    inner: Runner

    @property
    def ready(self) -> Ready:
        """The inner runner's."""
        return self.inner.ready

    @property
    def overlaps(self) -> bool:
        """The inner runner's."""
        return self.inner.overlaps

    def submit(self, batch: Batch) -> Pending:
        """Submit a step to the inner runner."""
        return self.inner.submit(batch)


@dataclass(frozen=True, slots=True)
class Served:
    """A runner that serves one core after the other."""

    config: EngineConfig
    runner: Runner
    clock: Clock

    def answer(self, adds: Iterable[Add], **settings: Any) -> Answers:
        """Answer requests that arrive together, with a new core; RuntimeError if one fails."""
        core = Core(replace(self.config, **settings), self.runner)
        answers, wanted, clock = Answers(), 0, self.clock
        clock.wait()
        began = before = clock.now()
        for add in adds:
            wanted += sum([choice.max_tokens for choice in add.choices])
            core.add(add)
        while core.has_work:
            done = core.step()
            now = clock.now()
            for failed in done.failed:
                raise RuntimeError(f"request {failed.group}: {failed.message}")
            if done.started:
                answers.first, answers.steps = now - began, []
            else:
                answers.steps.append(now - before)
            before = now
            for started in done.started:
                answers.prompt[started.group] = started.prompt_logprobs
            for drawn in done.tokens:
                answers.tokens.setdefault((drawn.group, drawn.choice), []).append(drawn.token)
                answers.logprobs.setdefault((drawn.group, drawn.choice), []).append(drawn.logprobs)
            answers.peak_blocks = max(answers.peak_blocks, done.stats.peak_blocks)
        clock.wait()
        answers.seconds = clock.now() - began
        if answers.drawn != wanted:
            raise RuntimeError(f"{answers.drawn} tokens came of {wanted}")
        core.scheduler.pool.check_integrity(())
        return answers


def prompt(shape: ModelShape, length: int, seed: int) -> tuple[int, ...]:
    """Return a prompt of random tokens, a different one for each seed."""
    chance = random.Random(seed)
    return tuple([chance.randrange(shape.vocab) for _ in range(length)])


def request(
    tokens: Sequence[int], n: int, new: int, *, group: int = 0, seed: int = 0, logprobs: int | None = None
) -> Add:
    """Return one request for n choices at temperature 1, with seeds seed .. seed + n - 1."""
    add = Add.alike(group, tuple(tokens), n, seed, new, Sampling(), frozenset())
    return replace(add, logprobs=logprobs)


def apart(tokens: Sequence[int], n: int, new: int, *, seed: int = 0) -> list[Add]:
    """Return the same work as n requests for one choice each."""
    return [request(tokens, 1, new, group=i, seed=seed + i) for i in range(n)]

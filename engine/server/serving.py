"""What the server's requests share: the model's names and tokenizer, the core once it is ready, the number
of requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from engine.config import EngineConfig
from engine.messages import Ready
from engine.options import STALL_SECONDS
from engine.server.asking.order import Order
from engine.server.failures import stopped
from engine.server.metrics import Metrics
from engine.server.preparing.compiling import Compiling
from engine.server.preparing.pooling import Pooling
from engine.server.preparing.prompts import Prompt, prepare
from engine.server.router import Router
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import ApiError, engine_unavailable, model_not_found
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.requests import Limits

_PREPARE_SECONDS = 10.0
_MOST_CHOICES = 128
_SMALL_BYTES = 64 << 10
_Result = TypeVar("_Result")


class Serving:
    """One engine's state in the server process; owned by its event loop.

    model: the id in the API; adapters: those of its LoRA adapters. started: seconds since 1970. limits: the widest n,
    and choices per request. most_logprobs: how many of the likeliest tokens may be asked for. stall_seconds: a core
    that has work and completes no step for so long counts as hung. random: gives the seeds of requests without one.
    pooling: how the model makes embeddings; None if it makes none.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: str,
        tokenizer: Tokenizer,
        stall_seconds: float = STALL_SECONDS,
        pooling: Pooling | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self.tokenizer = tokenizer
        self.started = int(time.time())
        self.adapters = tuple([name for name, _ in config.adapters])
        self.limits = Limits(max_n=min(_MOST_CHOICES, config.max_sequences))
        self.most_logprobs = config.max_logprobs
        self.stall_seconds = stall_seconds
        self.pooling = pooling
        self.draining = False
        self.fingerprint: str | None = None
        self._core: tuple[Router, Metrics] | None = None
        self._lost = False
        self.random = random.Random(config.seed)
        self._compiling: Compiling | None = None
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="prompts")
        self._requests = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def take_core(self, router: Router, metrics: Metrics) -> None:
        """Accept requests from now on."""
        self._core = (router, metrics)
        ready = router.ready
        made_of = f"{self.model} {ready.vocab_size} {self.config.quantization or ready.dtype} {ready.device}".encode()
        self.fingerprint = "fp_" + hashlib.blake2s(made_of, digest_size=6).hexdigest()

    def lose_core(self) -> None:
        """Refuse requests from now on, because the core has ended."""
        self._core, self._lost = None, True

    @property
    def ready(self) -> bool:
        """Whether the model is loaded and its core is running."""
        return self._core is not None

    @property
    def router(self) -> Router:
        """The router to the core; raises ApiError 503 while there is none."""
        return self._loaded()[0]

    @property
    def metrics(self) -> Metrics:
        """The core's metrics; raises ApiError 503 while there is no core."""
        return self._loaded()[1]

    def _loaded(self) -> tuple[Router, Metrics]:
        if self._core is None:
            raise stopped() if self._lost else engine_unavailable("The engine is loading its model.")
        return self._core

    @property
    def only_model(self) -> str | None:
        """The model of a request that names none; None if there are adapters, as any of them might be meant."""
        return None if self.adapters else self.model

    def named(self, fields: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return a request's fields with the model that it means if it names none."""
        only = self.only_model
        return {**fields, "model": only} if only is not None and fields.get("model") is None else fields

    def adapter(self, model: str) -> str | None:
        """Return the adapter that a client names, None for the model itself; raise ApiError 404 for any other name."""
        if model in self.adapters:
            return model
        if model != self.model:
            raise model_not_found(model)
        return None

    def check(self) -> None:
        """Raise ApiError 503 unless there is a core and, as far as the server can tell, it works."""
        if self.router.silence > self.stall_seconds:
            raise ApiError(
                503, "The engine has work and makes no progress.", type="server_error", code="engine_stalled"
            )

    @property
    def works(self) -> bool:
        """Whether `check` raises nothing."""
        try:
            self.check()
        except ApiError:
            return False
        return True

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request while it is served; raise ApiError 503 if the engine is shutting down."""
        if self.draining:
            raise engine_unavailable("The engine is shutting down.")
        self._requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._idle.set()

    async def until_idle(self, seconds: float) -> bool:
        """Wait until no request is being served; return False if that takes longer than `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def prepare(self, order: Order) -> tuple[Prompt, ...]:
        """Turn the request's prompts into tokens, off the event loop and within a time limit, and try its grammar."""
        ready = self.router.ready
        prompts = await self.aside(lambda: prepare(order, self.tokenizer, ready))
        return tuple([await self._tried(prompt, ready) for prompt in prompts])

    async def _tried(self, prompt: Prompt, ready: Ready) -> Prompt:
        if prompt.structure is None:
            return prompt
        if self._compiling is None:
            self._compiling = Compiling(self.tokenizer, ready)
        return replace(prompt, structure=await self._compiling.check(prompt.structure))

    async def by_size(self, size: int, read: Callable[[], _Result]) -> _Result:
        """Parse a body of `size` bytes: here, or in a thread if that would block the event loop."""
        return read() if size <= _SMALL_BYTES else await self.aside(read)

    async def aside(self, work: Callable[[], _Result]) -> _Result:
        """Do a piece of work on text in a thread; raise ApiError 503 if it takes too long."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_PREPARE_SECONDS):
                return await loop.run_in_executor(self._threads, work)
        except TimeoutError as error:
            raise ApiError(
                503, "The prompt could not be prepared in time.", type="server_error", code="overloaded"
            ) from error

    def close(self) -> None:
        """Stop the threads and the process that tries grammars, without waiting for those that are busy."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._compiling is not None:
            self._compiling.kill()

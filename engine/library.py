"""The engine inside a program: a model, loaded in this process, asked with the words of the wire.

    with Engine("path/to/model") as engine:
        for choice in engine.chat([{"role": "user", "content": "Name a color."}], n=4, seed=1).choices:
            print(choice.text)

The same requests with the same seeds give the same answers as over HTTP.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from engine.config import EngineConfig
from engine.core import Core
from engine.errors import EngineError, RequestError
from engine.messages import Abort, Add, GroupFailed, Logprobs, Started, TokenDrawn
from engine.runner import Runner
from engine.server.best_of import the_best
from engine.server.groups import groups, manners
from engine.server.order import Order, read_order
from engine.server.output import Output, Piece, Told
from engine.server.prompts import Prompt, prepare
from engine.server.said import Said, message, text_of
from engine.text.parsers.parts import Part
from engine.text.tokenizer import load_tokenizer
from nproxy.openai.body import Body
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON, dumps
from nproxy.openai.requests import Limits, parse_chat, parse_completion

Messages = Sequence[Mapping[str, Any]]
"""A conversation as the wire has it: objects with `role` and `content`."""

_Event = Started | TokenDrawn | GroupFailed

_UNBOUNDED = 1 << 30
_MODEL = "model"  # the wire wants a name; in a program there is one model


class Wishes(TypedDict, total=False):
    """What may be asked for, by the names, meanings and bounds of the wire; what is left out is as there.

    logprobs: how many of the likeliest tokens are told with each drawn one, for chats, too.
    """

    n: int
    best_of: int
    seed: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[str, float]
    bad_words: Sequence[str]
    allowed_token_ids: Sequence[int]
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    logprobs: int
    choice_params: Sequence[Mapping[str, Any]]
    response_format: Mapping[str, Any]
    structured_outputs: Mapping[str, Any]


class ChatWishes(Wishes, total=False):
    """What a chat has beyond that."""

    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    chat_template_kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer. tokens: its own, a stop token included. logprobs: one for each of them, where they were asked for.

    finish_reason: "stop", "length" or "tool_calls". message: of a chat, as the wire has it, with reasoning and calls.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[Logprobs, ...] | None
    message: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a prompt, those of them that were computed before, and tokens of all its choices."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True, slots=True)
class Answer:
    """All choices for one prompt, in order."""

    choices: tuple[Choice, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Delta:
    """More of one choice. parts: what it says, taken apart: content, reasoning, calls; text: the content among it.

    finish_reason: None before the last.
    """

    index: int
    text: str
    parts: tuple[Part, ...]
    tokens: tuple[int, ...]
    finish_reason: str | None
    logprobs: tuple[Logprobs, ...] | None


class Engine:
    """A loaded model. Threads may share one: whoever waits for an answer runs the steps, of all of them together."""

    def __init__(self, model: str | Path, **options: Any) -> None:
        """Load a Hugging Face folder or a .gguf file; `options` are the fields of EngineConfig.

        Raises ModelError for a model that cannot be run, ConfigError for options that cannot work.
        """
        config = EngineConfig(str(model), **options)
        self._tokenizer = load_tokenizer(Path(model), config.tool_parser, config.reasoning_parser)
        self._core: Core | None = Core(config, Runner.load(config), self._tokenizer.backend.to_str())
        self._limits = Limits(config.max_sequences, _UNBOUNDED)
        self._room = config.max_sequences + config.max_queue
        self._random = Random(config.seed)
        self._numbers = itertools.count()
        self._runs: dict[int, _Run] = {}
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the model and its memory. Whoever still waits, or asks again, gets an EngineError."""
        with self._lock:
            self._core = None

    def generate(
        self, prompts: str | Sequence[str] | Sequence[Sequence[int]], **wishes: Unpack[Wishes]
    ) -> list[Answer]:
        """Continue texts, or lists of token ids, all at once: one answer for each, in order.

        Raises RequestError for what cannot be asked.
        """
        return self._answers({"prompt": prompts, **wishes})

    def chat(self, messages: Messages, **wishes: Unpack[ChatWishes]) -> Answer:
        """Answer a conversation, written by the model's own template; raises RequestError for what cannot be asked."""
        return self._answers({"messages": messages, **wishes})[0]

    def stream(self, prompt: str | Messages, **wishes: Unpack[ChatWishes]) -> Iterator[Delta]:
        """Continue a text, or answer a conversation, and give every choice's pieces as they come.

        What still runs when the iterator is closed or dropped ends then. Raises RequestError for what cannot be asked.
        """
        asked = {"prompt" if isinstance(prompt, str) else "messages": prompt, "stream": True}
        order, prepared = self._read({**asked, **wishes})
        runs = self._start(order, prepared)
        return (_delta(piece, order) for pieces in self._pieces(runs) for piece in pieces)

    def _answers(self, fields: Mapping[str, Any]) -> list[Answer]:
        order, prepared = self._read(fields)
        runs = self._start(order, prepared)
        for _ in self._pieces(runs):
            pass
        return [run.answer(order.request.n) for run in runs]

    def _read(self, fields: Mapping[str, Any]) -> tuple[Order, tuple[Prompt, ...]]:
        """Validate a request as the server does."""
        asked = {"model": _MODEL, "return_token_ids": True, **fields}
        chat, logprobs = "messages" in asked, asked.get("logprobs")
        if chat and logprobs is not None:
            asked |= {"logprobs": True, "top_logprobs": logprobs}
        with _asking():
            body = Body.parse(dumps(asked))
            order = read_order(parse_chat(body, self._limits) if chat else parse_completion(body, self._limits))
            return order, prepare(order, self._tokenizer, self._loaded.ready)

    def _start(self, order: Order, prompts: Sequence[Prompt]) -> list[_Run]:
        table = self._tokenizer.table
        with self._lock:
            adds = groups(order, prompts, self._loaded.ready, self._random)
            runs = []
            for add, manner in zip(adds, manners(order, prompts, table), strict=True):
                number = next(self._numbers)
                runs.append(_Run(order, replace(add, group=number), Output([number], table, [manner])))
            return runs

    def _pieces(self, runs: Sequence[_Run]) -> Iterator[Sequence[Piece]]:
        """Run steps until all choices are done, and give what each step says; on leaving, what still runs is ended."""
        waiting = deque(runs)
        try:
            while not all(run.output.finished for run in runs):
                with self._lock:
                    if not any(run.told for run in runs):
                        self._admit(waiting)
                        self._step()
                    told = [run.take() for run in runs]
                    for run, (_, cut) in zip(runs, told, strict=True):
                        if cut:
                            self._loaded.abort(Abort(run.add.group, cut))
                for pieces, _ in told:
                    yield pieces
        finally:
            with self._lock:
                for run in runs:
                    if self._runs.pop(run.add.group, None) and not run.output.finished and self._core is not None:
                        self._core.abort(Abort(run.add.group))

    def _admit(self, waiting: deque[_Run]) -> None:
        """Hand over as many groups as the core's queue takes."""
        core = self._loaded
        while waiting and core.scheduler.living + len(waiting[0].add.choices) <= self._room:
            run = waiting.popleft()
            self._runs[run.add.group] = run
            core.add(run.add)

    def _step(self) -> None:
        done = self._loaded.step()
        events: list[_Event] = [*done.started, *done.tokens, *done.failed]
        for event in events:
            if (run := self._runs.get(event.group)) is not None:
                run.told.append(event)

    @property
    def _loaded(self) -> Core:
        if self._core is None:
            raise EngineError("this engine is closed")
        return self._core


class _Run:
    """One prompt's choices on their way. told: what the core has told and the caller has not taken."""

    def __init__(self, order: Order, add: Add, output: Output) -> None:
        self.add = add
        self.output = output
        self.told: list[_Event] = []
        self._order = order
        self._said = [Said() for _ in add.choices]

    def take(self) -> tuple[Sequence[Piece], tuple[int, ...]]:
        """What has been told as pieces, and the choices that a stop string ended; raises when the core has failed."""
        events: list[Started | TokenDrawn] = []
        for event in self.told:
            if isinstance(event, GroupFailed):
                raise EngineError(event.message) if event.kind == "failed" else RequestError(event.message)
            events.append(event)
        self.told = []
        taken = self.output.take(events)
        for piece in taken.pieces:
            self._said[piece.index].add(piece)
        return taken.pieces, tuple([choice for _, choice in taken.cut])

    def answer(self, n: int) -> Answer:
        """The n best choices, or all that were drawn."""
        said = self._said if n == len(self._said) else the_best(self._said, len(self._said), n)
        choices = tuple([_choice(index, one, self._order) for index, one in enumerate(said)])
        usage = Usage(len(self.add.prompt), self.output.cached_tokens, self.output.completion_tokens)
        return Answer(choices, usage)


def _choice(index: int, said: Said, order: Order) -> Choice:
    tokens, logprobs = _told(said.told, order)
    return Choice(index, text_of(said.parts), tokens, said.finish or "", logprobs, message(said.parts))


def _delta(piece: Piece, order: Order) -> Delta:
    tokens, logprobs = _told(piece.told, order)
    return Delta(piece.index, text_of(piece.parts), piece.parts, tokens, piece.finish, logprobs)


def _told(told: Sequence[Told], order: Order) -> tuple[tuple[int, ...], tuple[Logprobs, ...] | None]:
    """The tokens of a choice, and their log probabilities where those were asked for."""
    tokens = tuple([one.token for one in told])
    if order.telling.logprobs is None:
        return tokens, None
    return tokens, tuple([one.logprobs for one in told if one.logprobs is not None])


@contextmanager
def _asking() -> Iterator[None]:
    """Say in a program's terms what the wire refuses."""
    try:
        yield
    except ApiError as error:
        raise RequestError(error.message, error.param) from None

"""The model in this process, and the methods to ask it."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self, Unpack

from engine.core import Core
from engine.errors import RequestError
from engine.library.answers import Answer, Delta, Usage, choice_of, delta_of
from engine.library.options import (
    ChatOptions,
    EngineOptions,
    Messages,
    StreamingOptions,
    TextOptions,
    body_of,
    check_options,
    config_of,
)
from engine.library.shared import News, SharedCore
from engine.loading import load_runner
from engine.messages import Add, Embed, Embedded
from engine.server.answering.best_of import the_best
from engine.server.answering.choice_text import ChoiceText
from engine.server.answering.output import Output, Piece
from engine.server.asking.order import Order, read_order
from engine.server.asking.salt import salt_of
from engine.server.groups import groups, manners, rules
from engine.server.preparing.embedding_inputs import prompts_of
from engine.server.preparing.pooling import read_pooling
from engine.server.preparing.prompts import prepare
from engine.text.tokenizer import load_tokenizer
from nproxy.openai.errors import ApiError
from nproxy.openai.requests import Limits, parse_chat, parse_completion, read_prompts

_UNBOUNDED = 1 << 30
_MODEL = "\0"  # stands for the model itself, as the API requires a name; no adapter has this name

Texts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
"""One text or several, also as token ids."""


class Engine:
    """A loaded model. Threads may share one: a thread that waits for an answer runs the steps for all of them."""

    def __init__(self, model: str | Path, **options: Unpack[EngineOptions]) -> None:
        """Load a Hugging Face folder or a .gguf file.

        Raises ModelError for a model that cannot be run, ConfigError for options that cannot work.
        """
        config = config_of(model, options)
        self._tokenizer = load_tokenizer(Path(model), config.tool_parser, config.reasoning_parser)
        self._pooling = read_pooling(config)
        core = Core(config, load_runner(config), self._tokenizer.backend.to_str())
        self._core = SharedCore(core, config.room)
        self._adapters = frozenset([name for name, _ in config.adapters])
        self._limits = Limits(config.max_sequences, _UNBOUNDED)
        self._most_logprobs = config.max_logprobs
        self._random = Random(config.seed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the model and its memory. Calls that still wait, and later calls, get an EngineError."""
        self._core.close()

    def generate(self, prompts: Texts, **options: Unpack[TextOptions]) -> list[Answer]:
        """Continue texts, all at once; return one answer for each, in order.

        Raises RequestError for an invalid request.
        """
        return self._answers({"prompt": prompts}, options)

    def chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> Answer:
        """Answer a conversation, written by the model's own template. Raises RequestError for an invalid request."""
        return self._answers({"messages": messages}, options)[0]

    def stream(self, prompt: str | Messages, **options: Unpack[StreamingOptions]) -> Generator[Delta, None, None]:
        """Continue a text, or answer a conversation, and yield every choice's deltas as they come.

        What still runs when the generator is closed or dropped is ended. Raises RequestError for an invalid request.
        """
        asked = {"prompt" if isinstance(prompt, str) else "messages": prompt, "stream": True}
        runs = self._start(asked, options)
        if runs[0].order.prompt_logprobs is not None:
            raise RequestError(
                "a prompt's log probabilities cannot be streamed: ask without 'echo' or 'logprobs'", "echo"
            )
        return (delta_of(piece, runs[0].order) for pieces in self._pieces(runs) for piece in pieces)

    def embed(self, inputs: Texts) -> list[tuple[float, ...]]:
        """Return one vector for each text, in order.

        Raises RequestError if neither the model nor the options define a pooling.
        """
        pooling, core = self._pooling, self._core
        if pooling is None:
            raise RequestError(
                "this model's files define no pooling, and the option pooling='mean' or 'last' was not given"
            )
        with _asking():
            given, _ = read_prompts(body_of({"input": inputs}).fields, "input")
            prompts = prompts_of(given, self._tokenizer, core.ready, pooling)
        embeds = [Embed(core.number(), prompt, pooling.kind) for prompt in prompts]
        vectors: dict[int, tuple[float, ...]] = {}
        waiting, numbers = deque[Add | Embed](embeds), [embed.group for embed in embeds]
        try:
            while len(vectors) < len(embeds):
                reported = [one for news in core.news(numbers, waiting).values() for one in news]
                vectors |= {one.group: one.vector for one in reported if isinstance(one, Embedded)}
        finally:
            core.leave(numbers)
        return [pooling.finish(vectors[number]) for number in numbers]

    def _answers(self, asked: Mapping[str, Any], options: Mapping[str, Any]) -> list[Answer]:
        runs = self._start(asked, options)
        for _ in self._pieces(runs):
            pass
        return [run.answer() for run in runs]

    def _start(self, asked: Mapping[str, Any], options: Mapping[str, Any]) -> list[_Run]:
        """Validate a request like the server; return one run for each prompt.

        asked: the fields that do not come from `options`.
        """
        chat = "messages" in asked
        check_options(options, chat=chat)
        model = _MODEL if options.get("model") is None else options["model"]
        fields = {"return_token_ids": True, **asked, **options, "model": model}
        with _asking():
            body = body_of(_chats_logprobs(fields) if chat else fields)
            request = parse_chat(body, self._limits) if chat else parse_completion(body, self._limits)
            order = read_order(request, self._most_logprobs)
            adapter, salt = self._adapter(request.model), salt_of({}, body.fields)
            prompts = prepare(order, self._tokenizer, self._core.ready)
            adds = groups(order, prompts, self._core.ready, self._random, salt=salt, adapter=adapter)
        table = self._tokenizer.table
        numbered = [replace(add, group=self._core.number()) for add in adds]
        named = rules(order, prompts)
        return [
            _Run(order, named, add, Output([add.group], table, [manner]))
            for add, manner in zip(numbered, manners(order, prompts, table), strict=True)
        ]

    def _adapter(self, model: str) -> str | None:
        if model == _MODEL:
            return None
        if model not in self._adapters:
            raise RequestError(f"there is no adapter '{model}'", "model")
        return model

    def _pieces(self, runs: Sequence[_Run]) -> Iterator[Sequence[Piece]]:
        """Run steps until all choices are done, and yield what each step gives; on exit, end what still runs."""
        waiting = deque[Add | Embed]([run.add for run in runs])
        by_group = {run.add.group: run for run in runs}
        try:
            while not all(run.output.finished for run in runs):
                for group, news in self._core.news(by_group, waiting, runs[0].rules).items():
                    pieces, cut = by_group[group].take(news)
                    if cut:
                        self._core.abort(group, cut)
                    yield pieces
        finally:
            self._core.leave(by_group)


class _Run:
    """One prompt's choices while they are computed. rules: the request's fields that exclude tokens."""

    def __init__(self, order: Order, rules: Sequence[str], add: Add, output: Output) -> None:
        self.order = order
        self.rules = rules
        self.add = add
        self.output = output
        self._choices = [ChoiceText() for _ in add.choices]

    def take(self, news: Sequence[News]) -> tuple[Sequence[Piece], tuple[int, ...]]:
        """Return news as pieces, and the choices that a stop string ended."""
        taken = self.output.take([one for one in news if not isinstance(one, Embedded)])
        for piece in taken.pieces:
            self._choices[piece.index].add(piece)
        return taken.pieces, tuple([choice for _, choice in taken.cut])

    def answer(self) -> Answer:
        """Return the n best choices, or all that were drawn."""
        n, drawn = self.order.request.n, len(self._choices)
        best = self._choices if n == drawn else the_best(self._choices, drawn, n)
        choices = tuple([choice_of(index, one, self.order) for index, one in enumerate(best)])
        usage = Usage(len(self.add.prompt), self.output.cached_tokens, self.output.completion_tokens)
        (scored,) = self.output.prompt_logprobs
        return Answer(choices, usage, self.add.prompt, None if scored is None else tuple(scored))


def _chats_logprobs(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a chat's fields with `logprobs` as in the API, in which the number has a field of its own."""
    logprobs = fields.get("logprobs")
    if logprobs is None or isinstance(logprobs, bool):
        return fields
    if fields.get("top_logprobs") is not None:
        raise RequestError("'top_logprobs' needs 'logprobs' to be True, not a number", "top_logprobs")
    return {**fields, "logprobs": True, "top_logprobs": logprobs}


@contextmanager
def _asking() -> Iterator[None]:
    """Raise the API's errors as RequestError."""
    try:
        yield
    except ApiError as error:
        raise RequestError(error.message, error.param) from None

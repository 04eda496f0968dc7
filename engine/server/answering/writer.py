"""Pieces and whole choices in the bytes of one request's response."""

from __future__ import annotations

from collections.abc import Sequence

from engine.messages import Logprobs
from engine.server.answering.choice_text import ChoiceText, delta, message, text_of
from engine.server.answering.logprobs import Spelling
from engine.server.answering.output import Piece, ReportedToken
from engine.text.parsers.parts import Content
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.usage import Usage
from nproxy.openai.wire import DONE_FRAME, Wire, error_event


class Writer:
    """Writes what the client has asked for, and nothing else.

    prompts: the tokens of the request's prompts, each of which has `n` choices in the answer. What belongs to a prompt
    and not to a choice is beside the choices of a chat, which has one prompt, and in every choice of a legacy
    completion, as in vLLM.
    """

    def __init__(self, wire: Wire, spelling: Spelling, prompts: Sequence[tuple[int, ...]], n: int) -> None:
        self._wire = wire
        self._chat = wire.dialect is Dialect.CHAT
        self._output_options = spelling.output_options
        self._spelling = spelling
        self._prompts = prompts
        self._n = n
        self._begun: set[int] = set()
        self._echoes: dict[int, dict[str, list[JSON]]] = {}  # log probabilities of the echoed prompts

    def prelude(self) -> bytes:
        """Return the role chunks that a chat's stream begins with."""
        return self._wire.prelude(range(len(self._prompts) * self._n))

    def chunk(self, piece: Piece, usage: Usage | None = None) -> bytes:
        """Return one piece as one chunk; usage: the running total, if each chunk carries it."""
        if self._chat and not self._output_options.tokens and usage is None and len(piece.parts) == 1:
            (part,) = piece.parts
            if isinstance(part, Content) and piece.stop_reason is None:  # nearly every chunk of nearly every stream
                return self._wire.text(piece.index, part.text, finish_reason=piece.finish)
        about: dict[str, JSON] = {}
        if self._output_options.ids and piece.index not in self._begun:
            about = {"prompt_token_ids": list(self._prompts[piece.index // self._n])}
            self._begun.update(range(self._n) if self._chat else (piece.index,))
        return self._wire.chunk(
            piece.index,
            delta(piece.parts) if self._chat else {"text": text_of(piece.parts)},
            finish_reason=piece.finish,
            logprobs=self._logprobs(piece.index, piece.reported),
            extra={**({} if self._chat else about), **self._about_choice(piece)},
            top=about if self._chat else {},
            usage=None if usage is None else usage.to_json(),
        )

    def end(self, usage: Usage) -> bytes:
        """Return the chunk without choices that carries the usage, if it was asked for, and `[DONE]`."""
        return (self._wire.usage_tail(usage) if self._wire.include_usage else b"") + DONE_FRAME

    def failure(self, error: ApiError, unsent: bytes) -> bytes:
        """Return an error as the stream's last event, alone if nothing was sent: a gateway may then ask elsewhere."""
        return error_event(error)

    def answer(
        self, choices: Sequence[ChoiceText], usage: Usage, prompt_logprobs: Sequence[Sequence[Logprobs | None] | None]
    ) -> bytes:
        """Return the whole answer; `prompt_logprobs`: of each prompt, if they were computed."""
        about = [self._about(*prompt) for prompt in zip(self._prompts, prompt_logprobs, strict=True)]
        written = [
            self._wire.choice(
                message(choice.parts) if self._chat else {"text": text_of(choice.parts)},
                finish_reason=choice.finish,
                logprobs=self._logprobs(index, choice.reported),
                extra={**({} if self._chat else about[index // self._n]), **self._about_choice(choice)},
            )
            for index, choice in enumerate(choices)
        ]
        return self._wire.answer(enumerate(written), usage, about[0] if self._chat else {})

    def _about(self, tokens: tuple[int, ...], logprobs: Sequence[Logprobs | None] | None) -> dict[str, JSON]:
        """Return what the answer reports about a prompt."""
        fields: dict[str, JSON] = {}
        if self._output_options.ids:
            fields["prompt_token_ids"] = list(tokens)
        if self._output_options.prompt_logprobs is not None and logprobs is not None:
            fields["prompt_logprobs"] = self._spelling.prompt(tokens, logprobs)
        return fields

    def _about_choice(self, choice: Piece | ChoiceText) -> dict[str, JSON]:
        """Return vLLM's fields of a choice: its tokens, if asked for, and what ended it, if the client named that."""
        fields: dict[str, JSON] = {}
        if self._output_options.ids:
            fields["token_ids"] = [one.token for one in choice.reported if not one.echoed]
        if choice.stop_reason is not None:
            fields["stop_reason"] = choice.stop_reason
        return fields

    def _logprobs(self, index: int, reported: Sequence[ReportedToken]) -> JSON:
        if self._output_options.logprobs is None:
            return None
        if self._chat:
            return self._spelling.chat(reported)
        echoed = next((place for place, one in enumerate(reported) if not one.echoed), len(reported))
        own = self._spelling.legacy(reported[echoed:])
        if not echoed:
            return dict(own)
        prompt = index // self._n
        if prompt not in self._echoes:  # written once, because its other choices begin with the same tokens
            self._echoes[prompt] = self._spelling.legacy(reported[:echoed])
        return {name: self._echoes[prompt][name] + column for name, column in own.items()}

"""A request as the engine works on it: its own fields parsed once, then only read."""

from __future__ import annotations

from dataclasses import dataclass

from engine.server.asking.chat import Chat, read_chat
from engine.server.asking.choice_options import ChoiceOptions, read_choice_options
from engine.server.asking.fields import check_fields
from engine.server.asking.members import Members
from engine.server.asking.output_options import MOST_LOGPROBS, OutputOptions, read_output_options
from engine.server.asking.sampling import read_tokens
from engine.server.asking.structure import Structure, read_structure
from nproxy.openai.requests import ChatRequest, CompletionRequest


@dataclass(frozen=True, slots=True)
class Order:
    """What a client asked for, apart from the prompt.

    seed: of choice 0 of each prompt, counted up from there; None asks for a random one. wishes: what each of a
    prompt's n choices is to be. stop_tokens: ids that end a choice, beside the model's own unless ignore_eos.
    chat: None in a completion. structure: what the answers are to look like.
    telling: what is told of tokens beside their text.
    """

    request: ChatRequest | CompletionRequest
    wishes: tuple[ChoiceOptions, ...]
    seed: int | None
    stop_tokens: frozenset[int]
    ignore_eos: bool
    chat: Chat | None
    structure: Structure | None
    telling: OutputOptions

    @property
    def echoes(self) -> bool:
        """Whether the prompt's text comes back with each choice."""
        return isinstance(self.request, CompletionRequest) and self.request.echo

    @property
    def drawn_logprobs(self) -> int | None:
        """As in Add; best_of chooses by them, told or not."""
        chosen = 0 if self.request.drawn > self.request.n else None
        return chosen if self.telling.logprobs is None else self.telling.logprobs

    @property
    def prompt_logprobs(self) -> int | None:
        """As in Add: what is told of the prompt, by itself or with an echo."""
        told = [self.telling.prompt_logprobs, self.telling.logprobs if self.echoes else None]
        return max([one for one in told if one is not None], default=None)


def read_order(request: ChatRequest | CompletionRequest, most_logprobs: int = MOST_LOGPROBS) -> Order:
    """Read the engine's own fields; raises ApiError 400 naming the field at fault.

    most_logprobs: how many of the likeliest tokens may be asked for.
    """
    fields = request.body.fields
    check_fields(request.dialect, fields)
    return Order(
        request=request,
        wishes=read_choice_options(request),
        seed=None if request.seed == -1 else request.seed,  # -1 asks for a random seed, as with llama.cpp
        stop_tokens=frozenset(read_tokens(Members(fields), "stop_token_ids") or ()),
        ignore_eos=Members(fields).flag("ignore_eos"),
        chat=read_chat(fields) if isinstance(request, ChatRequest) else None,
        structure=read_structure(fields),
        telling=read_output_options(request, most_logprobs),
    )

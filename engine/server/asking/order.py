"""A request in the form that the engine works with: its own fields are parsed once, then only read."""

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
    """What a client asked for, apart from the prompt."""

    request: ChatRequest | CompletionRequest
    choice_options: tuple[ChoiceOptions, ...]
    """The options of each of a prompt's choices."""
    seed: int | None
    """Of choice 0 of each prompt, counted up from there; None asks for a random one."""
    stop_tokens: frozenset[int]
    """Ids that end a choice, besides the model's own unless ignore_eos is set."""
    ignore_eos: bool
    chat: Chat | None
    """None in a completion."""
    structure: Structure | None
    """What the answers must match; None for no restriction."""
    output_options: OutputOptions
    """What is returned about tokens besides their text."""

    @property
    def echoes(self) -> bool:
        """Whether each choice begins with the prompt's text."""
        return isinstance(self.request, CompletionRequest) and self.request.echo

    @property
    def drawn_logprobs(self) -> int | None:
        """As in Add. best_of needs them to choose, whether or not the client gets them."""
        chosen = 0 if self.request.drawn > self.request.n else None
        return chosen if self.output_options.logprobs is None else self.output_options.logprobs

    @property
    def prompt_logprobs(self) -> int | None:
        """As in Add: what is returned about the prompt, by itself or with an echo."""
        counts = [self.output_options.prompt_logprobs, self.output_options.logprobs if self.echoes else None]
        return max([one for one in counts if one is not None], default=None)


def read_order(request: ChatRequest | CompletionRequest, most_logprobs: int = MOST_LOGPROBS) -> Order:
    """Read the engine's own fields; raise ApiError 400 naming the field at fault.

    most_logprobs: how many of the likeliest tokens may be asked for.
    """
    fields = request.body.fields
    check_fields(request.dialect, fields)
    return Order(
        request=request,
        choice_options=read_choice_options(request),
        seed=None if request.seed == -1 else request.seed,  # -1 asks for a random seed, as with llama.cpp
        stop_tokens=frozenset(read_tokens(Members(fields), "stop_token_ids") or ()),
        ignore_eos=Members(fields).flag("ignore_eos"),
        chat=read_chat(fields) if isinstance(request, ChatRequest) else None,
        structure=read_structure(fields),
        output_options=read_output_options(request, most_logprobs),
    )

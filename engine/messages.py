"""The messages of the channel between the server process and the core process: plain frozen types, no torch.

The server sends one Start; when the model is loaded, the core answers with one Ready. Then the server sends one
Vocabulary, and Add, Embed and Abort; the core answers with a StepDone after every step. Every Add, Embed and Abort
leads to a step, though that may have nothing to run. The core sends Broken if it cannot go on. A group is one request,
a choice one of its sequences (0 .. n-1).

On the socket a message is its pickle preceded by its length. Pickle is safe here, and only here: both ends are the same
code of one installation, and no other process has access to the socket pair between them.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Literal

from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: the settings, and what loads the model.

    loader: "module:name" of a function that takes an EngineConfig and returns a runner (engine.core.Runner).
    """

    config: EngineConfig
    loader: str


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The second message, which the server can send only when it has read the tokenizer.

    tokenizer: the text of a tokenizer.json, from which grammars learn the text of each token; if it is None, grammars
    are refused.
    """

    tokenizer: str | None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of a choice are drawn. Every default leaves the model's distribution unchanged."""

    temperature: float = 1.0
    """0 means greedy."""
    top_k: int = 0
    """0 means off."""
    top_p: float = 1.0
    """1 means off."""
    min_p: float = 0.0
    """0 means off."""
    presence_penalty: float = 0.0
    """For tokens that the choice has drawn (OpenAI's formula)."""
    frequency_penalty: float = 0.0
    """In proportion to how often the choice has drawn the token (OpenAI's formula)."""
    repetition_penalty: float = 1.0
    """For tokens that the choice has drawn and those of the prompt (CTRL's formula)."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit)."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences whose last token is never drawn after the others."""
    allowed_tokens: tuple[int, ...] | None = None
    """No other token is drawn; None allows all."""
    min_tokens: int = 0
    """No stop token of the group is drawn before this many other tokens have been."""

    @property
    def edits(self) -> bool:
        """Whether it changes single tokens' logits by itself, before temperature, top-k, top-p and min-p."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1
            or self.logit_bias
            or self.bad_words
            or self.allowed_tokens is not None
        )

    @property
    def looks_back(self) -> bool:
        """Whether its changes of logits depend on the tokens before."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1
            or any(len(words) > 1 for words in self.bad_words)
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a group: the key of its random numbers (int64), the most new tokens, and how they are drawn."""

    seed: int
    max_tokens: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Add:
    """A new group: n choices over one prompt, which is computed once whatever each of them asks for."""

    group: int
    prompt: tuple[int, ...]
    choices: tuple[Choice, ...]
    stop_tokens: frozenset[int]
    """Ids that end a choice with reason "stop" (including the model's EOS ids unless the client said to ignore them).
    The stop token itself is reported and counted but never detokenized.
    """
    logprobs: int | None = None
    """How many of the likeliest tokens are returned with each drawn one, besides its own log probability; None computes
    none.
    """
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens, returned once in Started."""
    salt: str = ""
    """The prompt's blocks are shared only with groups of the same salt."""
    grammar: str | None = None
    """What every choice must match: llguidance's list of grammars as JSON, in which an entry may hold "gbnf" in place
    of "lark_grammar"; None allows everything.
    """
    adapter: str | None = None
    """The name of the LoRA adapter; None for the base model."""
    to_come: int = 0
    """How many choices of the same request come in groups right behind this one: there must be room for them too."""

    @classmethod
    def alike(
        cls,
        group: int,
        prompt: tuple[int, ...],
        n: int,
        seed: int,
        max_tokens: int,
        sampling: Sampling,
        stop_tokens: frozenset[int],
    ) -> Add:
        """Return a group of n choices that differ only in their seeds: choice i draws with seed + i."""
        choices = tuple([Choice(wrap_seed(seed + i), max_tokens, sampling) for i in range(n)])
        return cls(group, prompt, choices, stop_tokens)


@dataclass(frozen=True, slots=True)
class Abort:
    """End these choices of a group (all of them if `choices` is None); unknown ones are ignored."""

    group: int
    choices: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Embed:
    """A group without choices: a prompt whose hidden states (after the final norm) are pooled to one vector.

    salt, adapter: as in Add.
    """

    group: int
    prompt: tuple[int, ...]
    pooling: Literal["mean", "last"]
    salt: str = ""
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """The core has loaded the model."""

    vocab_size: int
    max_model_len: int
    """In tokens."""
    blocks: int
    """The number of blocks of `block_size` tokens each."""
    block_size: int
    kv_bytes_per_token: int
    eos_tokens: frozenset[int]
    device: str
    dtype: str
    batch_tokens: int | None = None
    """Tokens that one step may run, as the runner determined it; None leaves it to the settings."""
    layers: int = 1
    """The number of layers among which a token's KV is divided."""
    kernels: str = "torch"
    """The kernels that the model runs with."""
    quantization: str = "none"
    """"none" for weights as their file has them."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The log probability and rank of one token (1 for the likeliest), and the likeliest tokens, in descending order.

    Natural logarithms, of the model's own distribution: before penalties, bias, masks and temperature.
    """

    own: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class TokenDrawn:
    """One new token of one choice; `finish` is "stop" or "length" if it was the choice's last.

    Not frozen, as it is the type made most often (see engine.batch.Draw); never changed.
    """

    group: int
    choice: int
    token: int
    finish: str | None = None
    logprobs: Logprobs | None = None

    def __reduce__(self) -> tuple[type[TokenDrawn], tuple[int, int, int, str | None, Logprobs | None]]:
        # The most frequent type by far: this costs a third of pickling slots by name.
        return TokenDrawn, (self.group, self.choice, self.token, self.finish, self.logprobs)


@dataclass(frozen=True, slots=True)
class Started:
    """A group's prompt is computed: sent once, in the step that draws its first tokens, before them.

    cached_tokens: the prompt tokens whose keys and values were already there. prompt_logprobs: one entry per prompt
    token if they were asked for; None for the first token, which follows nothing.
    """

    group: int
    cached_tokens: int
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Embedded:
    """The answer to an Embed: a vector of the model's hidden size, not normalized."""

    group: int
    vector: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GroupFailed:
    """The core will not go on with this group; the message is for the client.

    kind: "refused" for a request that can never run here, so the client must change it; "unsatisfiable" for one whose
    rules for drawing and grammar leave no token, and "grammar" for one whose grammar cannot be used or followed, which
    the client must change too; "busy" if too many wait already, so the client may retry later; "failed" if the engine
    could not compute it.
    """

    group: int
    message: str
    kind: Literal["refused", "unsatisfiable", "grammar", "busy", "failed"]


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters since start (totals) and gauges (now), named as in docs/reference/metrics.md."""

    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    blocks_shared: int = 0
    peak_blocks: int = 0
    """Most blocks in use at once since start."""
    running: int = 0
    waiting: int = 0
    forks: int = 0
    block_copies: int = 0
    preemptions: int = 0
    gave_way: int = 0
    """Preemptions that made room for a narrower group that had waited long enough (ADR 0019)."""
    steps: int = 0
    prompt_tokens_computed: int = 0
    tokens_drawn: int = 0
    kv_bytes_read: int = 0
    """Bytes of KV read by all work items."""
    prefix_kv_bytes_read: int = 0
    """Bytes of KV read by work items that several rows share."""
    kv_bytes_unshared: int = 0
    """What the same steps would have read if every row had read its whole past by itself."""
    prefix_cache_hits: int = 0
    """Prompt tokens that were found computed when their group was admitted."""
    prefix_cache_misses: int = 0
    """Prompt tokens that were not."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """The result of one step."""

    tokens: tuple[TokenDrawn, ...]
    """All tokens drawn in it."""
    failed: tuple[GroupFailed, ...]
    """Groups that failed."""
    seconds: float
    """Wall-clock time that it took, from its scheduling until its result is reported. If it ran beside the step before
    it, from when that one was reported, so that no second counts twice.
    """
    batch_sequences: int
    """The number of its chunks and rows; 0 if the message reports no batch, as when the core only submits
    one (ADR 0021).
    """
    stats: Stats
    """The stats after it."""
    taken: int
    """How many messages the core has processed since its start, including those before this step."""
    started: tuple[Started, ...] = ()
    """Groups whose prompts were computed in it."""
    embedded: tuple[Embedded, ...] = ()
    """Answers to Embed."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The core's last message: why it could not load, or cannot go on.

    refused: whether a setting or the model's files are the reason.
    """

    message: str
    refused: bool = False


ToCore = Add | Embed | Abort
FromCore = Ready | StepDone | Broken
Message = Start | Vocabulary | ToCore | FromCore


def wrap_seed(seed: int) -> int:
    """Wrap an integer to int64, as two's complement does."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


HEADER = 4  # bytes of a message's length, big-endian


def pack(message: Message) -> bytes:
    """Return one message as it is sent on the socket, including its length."""
    body = pickle.dumps(message, protocol=5)
    return len(body).to_bytes(HEADER, "big") + body


def unpack(body: bytes) -> Message:
    """Return the message of a body, without the length."""
    message: Message = pickle.loads(body)  # noqa: S301  (the other end is this same code; see above)
    return message

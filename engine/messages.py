"""The channel between the server process and the core process: plain frozen types, no torch.

The server sends one Start, then Add, Embed and Abort; the core answers with one Ready, then a StepDone after
every step, and with Broken when it cannot go on. Every one of them leads to a step, though it may have
nothing to run. A group is one request, a choice one of its sequences (0 .. n-1).

On the socket a message is its pickle behind its length. Pickle is right here and nowhere else: both ends
are the same code of one installation, and the socket pair between them is theirs alone.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Literal

from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: the settings, and what loads the model, as "module:name" of a function that
    takes an EngineConfig and gives a runner (engine.core.Runner).

    tokenizer: the text of a tokenizer.json, from which grammars learn what a token stands for; None takes none.
    """

    config: EngineConfig
    loader: str
    tokenizer: str | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of a choice are drawn; every default leaves the model's distribution alone.

    temperature 0 means greedy; top_k 0, top_p 1 and min_p 0 mean off. presence_penalty and frequency_penalty
    look at what the choice has drawn (OpenAI's formula), repetition_penalty at that and the prompt (CTRL's).
    logit_bias: (token, what is added to its logit). bad_words: token sequences whose last token is never drawn
    behind the others. allowed_tokens: nothing else is drawn; None allows all. min_tokens: a stop token of the
    group is not drawn before so many others have been.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_tokens: tuple[int, ...] | None = None
    min_tokens: int = 0

    @property
    def edits(self) -> bool:
        """Whether it changes single tokens' logits by itself, ahead of temperature, top-k, top-p and min-p."""
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
        """Whether what it does to logits depends on the tokens that stand before."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1
            or any(len(words) > 1 for words in self.bad_words)
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a group: the key of its random numbers (int64), its new tokens at most, how they are drawn."""

    seed: int
    max_tokens: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Add:
    """A new group: n choices over one prompt, which is computed once whatever each of them asks for.

    stop_tokens: ids that end a choice with reason "stop" (the model's EOS ids included unless the client
    said to ignore them); the stop token itself is reported and counted but never detokenized.
    logprobs: how many of the likeliest tokens are told with each drawn one, besides its own; None computes
    none. prompt_logprobs: the same for the prompt's tokens, told once in Started. salt: the prompt's blocks are
    shared with groups of the same salt only. grammar: what every choice must match: llguidance's list of
    grammars as JSON, where an entry may hold "gbnf" in place of "lark_grammar"; None lets all through.
    adapter: name of the LoRA adapter, None for the model alone.
    """

    group: int
    prompt: tuple[int, ...]
    choices: tuple[Choice, ...]
    stop_tokens: frozenset[int]
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    salt: str = ""
    grammar: str | None = None
    adapter: str | None = None

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
        """n choices that differ in their seeds only: choice i draws with seed + i."""
        choices = tuple([Choice(wrap_seed(seed + i), max_tokens, sampling) for i in range(n)])
        return cls(group, prompt, choices, stop_tokens)


@dataclass(frozen=True, slots=True)
class Abort:
    """End these choices of a group (all of them when `choices` is None); unknown ones are ignored."""

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
    """The core has loaded the model. Sizes in tokens; `blocks` of `block_size` tokens each.

    batch_tokens: that one step may run, as the runner has found it; None leaves it to the settings. layers: among which
    a token's KV is divided. kernels, quantization: those that it runs by, "none" for weights as their file has them.
    """

    vocab_size: int
    max_model_len: int
    blocks: int
    block_size: int
    kv_bytes_per_token: int
    eos_tokens: frozenset[int]
    device: str
    dtype: str
    batch_tokens: int | None = None
    layers: int = 1
    kernels: str = "torch"
    quantization: str = "none"


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of one token: its own log probability and rank (1 for the likeliest), and the likeliest tokens, falling.

    Natural logarithms, of the model's own distribution: before penalties, bias, masks and temperature.
    """

    own: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenDrawn:
    """One new token of one choice; `finish` is "stop" or "length" when it was the choice's last."""

    group: int
    choice: int
    token: int
    finish: str | None = None
    logprobs: Logprobs | None = None

    def __reduce__(self) -> tuple[type[TokenDrawn], tuple[int, int, int, str | None, Logprobs | None]]:
        # The most frequent type by far: this is a third of what pickling slots by name costs.
        return TokenDrawn, (self.group, self.choice, self.token, self.finish, self.logprobs)


@dataclass(frozen=True, slots=True)
class Started:
    """A group's prompt is computed: told once, in the step that draws its first tokens, ahead of them.

    cached_tokens: of the prompt, those whose keys and values were there already. prompt_logprobs: one entry per
    prompt token where they were asked for, None for the first, which follows nothing.
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

    kind: "refused" for a request that can never run here, which is the client's to change; "unsatisfiable" for one
    whose grammar or rules for drawing cannot be kept, which is so too; "busy" when too many wait already, so that it
    may come again later; "failed" when the engine could not compute it.
    """

    group: int
    message: str
    kind: Literal["refused", "unsatisfiable", "busy", "failed"]


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters since start (totals) and gauges (now), as docs/reference/metrics.md names them.

    peak_blocks: most blocks in use at once since start. prefix_kv_bytes_read: bytes of KV read by work
    items shared by several rows; kv_bytes_read: by all items. kv_bytes_unshared: what the same steps
    would have read if every row had read its whole past for itself. prefix_cache_hits, prefix_cache_misses:
    prompt tokens that were found computed when their group was admitted, and those that were not.
    """

    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    blocks_shared: int = 0
    peak_blocks: int = 0
    running: int = 0
    waiting: int = 0
    forks: int = 0
    block_copies: int = 0
    preemptions: int = 0
    steps: int = 0
    prompt_tokens_computed: int = 0
    tokens_drawn: int = 0
    kv_bytes_read: int = 0
    prefix_kv_bytes_read: int = 0
    kv_bytes_unshared: int = 0
    prefix_cache_hits: int = 0
    prefix_cache_misses: int = 0


@dataclass(frozen=True, slots=True)
class StepDone:
    """What one step gave: all tokens drawn in it, groups that failed, and the stats after it.

    seconds: of the clock that it took, from its schedule until it is told; where it ran beside the step before it, from
    when that one was told, so that no second counts twice. batch_sequences: its chunks and rows; 0 where nothing is
    told of any, as when the core only submits (ADR 0021). started: groups whose prompts were computed in it.
    embedded: answers to Embed.

    taken: how many messages the core has taken in since its start, this step's included.
    """

    tokens: tuple[TokenDrawn, ...]
    failed: tuple[GroupFailed, ...]
    seconds: float
    batch_sequences: int
    stats: Stats
    taken: int
    started: tuple[Started, ...] = ()
    embedded: tuple[Embedded, ...] = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """The core's last words: why it could not load, or cannot go on."""

    message: str


ToCore = Add | Embed | Abort
FromCore = Ready | StepDone | Broken
Message = Start | ToCore | FromCore


def wrap_seed(seed: int) -> int:
    """Wrap an integer to int64, as two's complement does."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


HEADER = 4  # bytes of a message's length, big-endian


def pack(message: Message) -> bytes:
    """One message as it goes on the socket, its length included."""
    body = pickle.dumps(message, protocol=5)
    return len(body).to_bytes(HEADER, "big") + body


def unpack(body: bytes) -> Message:
    """The message of a body, its length taken off."""
    message: Message = pickle.loads(body)  # noqa: S301  (the other end is this same code; see above)
    return message

"""Grammars: each text is compiled once; there is one matcher per sequence, and a mask of tokens for each draw.

The library (llguidance) is imported with the first grammar: a core without it runs everything else. A grammar is
compiled in a thread, while its group waits outside of the scheduler. A mask costs some microseconds per row, so masks
are computed in the step that needs them.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.batch import Batch
from engine.errors import GrammarError
from engine.gbnf import prepared
from engine.messages import Add, Ready

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_log = logging.getLogger(__name__)

MOST_BYTES = 256 << 10
"""The longest grammar text, in bytes of UTF-8."""

_LEXER_STATES = 50_000  # 1 to 2 kB each, at most, in every matcher
_STACK = 64 << 20  # the library recurses along chains of rules; the server tries a grammar first, with less
_KEPT = 64  # compiled grammars that are kept
_NO_PACKAGE = "grammars need the llguidance package, which is not installed with this engine"

_REGEX_ERROR = re.compile(r"^error: (.+)$", re.MULTILINE)  # below the pattern, over several lines
_SCHEMA_PLACE = re.compile(r"^at [0-9()]+: (?=failed to compile JSON schema)")  # not the client's text
_ADVICE = re.compile(r"\. Enable 'coerce_one_of' option.*")  # to clients, which have no such option
_REASONS = {"": "it cannot be followed", "NoExtensionBias": "it accepts no text at all"}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar before its first token. matcher: never advanced, only copied. mask: of the first token."""

    matcher: LLMatcher
    mask: bytes

    def next(self, matcher: LLMatcher) -> bytes:
        """Return the mask for the next token of a copy: only stop tokens if nothing else may follow, or if
        it is in error.
        """
        return matcher.compute_bitmask()[: len(self.mask)]


class Compiler:
    """Makes matchers for one model's tokens.

    tokenizer: the text of a tokenizer.json. vocab_size: of the model's logits. stop_tokens: the tokens that end an
    answer. Raises GrammarError if there are none, if llguidance is not installed, or if it cannot read the tokens.
    """

    def __init__(self, tokenizer: str, vocab_size: int, stop_tokens: Collection[int]) -> None:
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ImportError as error:
            raise GrammarError(_NO_PACKAGE) from error
        # Some models name an end that their vocabulary does not have; it is never drawn.
        stop_tokens = [token for token in stop_tokens if 0 <= token < vocab_size]
        if not stop_tokens:
            raise GrammarError("this model has no token that ends an answer, so it does not support grammars")
        try:
            self._tokens = _tokens(tokenizer, vocab_size, sorted(stop_tokens))
        except ValueError as error:
            raise GrammarError(f"grammars are not supported with this model's tokenizer: {error}") from error
        self.stop_tokens = frozenset(stop_tokens)
        self._limits = LLParserLimits(max_lexer_states=_LEXER_STATES, verbose_errors=False)
        self._new = LLMatcher
        self._bytes = -(-vocab_size // 8)

    def compile(self, grammar: str) -> Compiled:
        """Compile a text in the notation of messages.Add; raise GrammarError with a reason for the client."""
        if len(grammar.encode()) > MOST_BYTES:
            raise GrammarError(f"it is longer than {MOST_BYTES} bytes")
        matcher = self._new(self._tokens, in_lark(grammar), log_level=0, limits=self._limits)
        mask = matcher.compute_bitmask()[: self._bytes]
        if matcher.is_error():
            raise GrammarError(reason(matcher))
        return Compiled(matcher, mask)


@dataclass(frozen=True, slots=True)
class _Spelling:
    """The interface through which the library asks for a model's tokens, and for those of a text."""

    eos_token_id: int
    tokens: list[bytes]
    special_token_ids: list[int]
    spell: Callable[[str], list[int]]
    bos_token_id: int | None = None

    def __call__(self, text: str) -> list[int]:
        return self.spell(text)


def _tokens(tokenizer: str, vocab_size: int, stop_tokens: list[int]) -> LLTokenizer:
    """Return the model's tokens for matchers. A text that spells a special token is treated as text.

    A mask of text allows no special token. If the library took a special token for the spelling of a required text,
    nothing could be drawn.
    """
    from llguidance import LLTokenizer, TokenizerWrapper
    from tokenizers import Tokenizer

    known = LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=stop_tokens)
    text = Tokenizer.from_str(_spelled_as_it_stands(tokenizer))
    text.encode_special_tokens = True
    spelling = _Spelling(
        stop_tokens[0],
        tokens=[known.decode_bytes([token]) for token in range(known.vocab_size)],
        special_token_ids=[token for token in range(known.vocab_size) if known.is_special_token(token)],
        spell=lambda words: text.encode(words, add_special_tokens=False).ids,
    )
    return LLTokenizer(TokenizerWrapper(spelling), n_vocab=vocab_size, eos_token=stop_tokens)


def _spelled_as_it_stands(tokenizer: str) -> str:
    """Return the text of a tokenizer.json changed so that it puts no space before a text, as
    SentencePiece's models do.
    """
    made: dict[str, Any] = json.loads(tokenizer)
    normalizer = made.get("normalizer") or {}
    steps = [step for step in normalizer.get("normalizers", [normalizer]) if step and step["type"] != "Prepend"]
    made["normalizer"] = {"type": "Sequence", "normalizers": steps}
    splitter = made.get("pre_tokenizer") or {}
    for step in splitter.get("pretokenizers", [splitter]):
        if step.get("type") == "Metaspace":
            step["prepend_scheme"] = "never"
        elif step.get("type") == "ByteLevel":
            step["add_prefix_space"] = False
    return json.dumps(made)


def in_lark(grammar: str) -> str:
    """Return the same grammar without entries in GBNF; raise GrammarError. Slow: 0.3 s for ten kilobytes."""
    if '"gbnf"' not in grammar:
        return grammar
    from llguidance.gbnf_to_lark import gbnf_to_lark

    whole: dict[str, Any] = json.loads(grammar)
    for entry in whole["grammars"]:
        if (text := entry.pop("gbnf", None)) is not None:
            try:
                entry["lark_grammar"] = gbnf_to_lark(prepared(text))
            except RecursionError as error:
                raise GrammarError("it is nested too deeply") from error
            except Exception as error:  # of the library's parser; some have no type of their own
                raise GrammarError(str(error)) from error
    return json.dumps(whole, ensure_ascii=False)


def reason(matcher: LLMatcher) -> str:
    """Return why a matcher is in error: one line of at most 300 characters, for the client."""
    text = matcher.get_error()
    found = _REGEX_ERROR.search(text)
    line = found[1] if found else next(iter(text.splitlines()), "")
    return _REASONS.get(line) or _ADVICE.sub("; use anyOf", _SCHEMA_PLACE.sub("", line))[:300]


@dataclass(slots=True)
class _Follower:
    """A sequence under a grammar. matcher: None before its first token, so that siblings share the first mask."""

    group: int
    compiled: Compiled
    matcher: LLMatcher | None = None

    def mask(self) -> bytes:
        """Return which tokens may be drawn now."""
        return self.compiled.mask if self.matcher is None else self.compiled.next(self.matcher)


@dataclass(slots=True)
class _Held:
    """A group whose grammar is being compiled. aborted: choices that have been ended in the meantime."""

    add: Add
    compiled: Future[Compiled]
    aborted: set[int]


class Grammars:
    """All grammars of a core, and the state of its sequences in them. Owned by the core's thread.

    tokenizer: as in Compiler; if it is None, every grammar is refused. wake: called from another thread when a held
    group may go on; if it is None, `hold` waits for the compilation.
    """

    def __init__(self, tokenizer: str | None, ready: Ready, wake: Callable[[], None] | None) -> None:
        self._tokenizer = tokenizer
        self._ready = ready
        self._wake = wake
        self._compiler: Compiler | None = None
        self._compiled: OrderedDict[str, Future[Compiled]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._held: dict[int, _Held] = {}
        self._followers: dict[int, _Follower] = {}

    # Groups that wait for their grammar

    @property
    def held(self) -> int:
        """The number of choices whose grammar is being compiled."""
        return sum([len(held.add.choices) - len(held.aborted) for held in self._held.values()])

    @property
    def due(self) -> bool:
        """Whether `release` would return anything."""
        return any(held.compiled.done() for held in self._held.values())

    def hold(self, add: Add, grammar: str) -> None:
        """Keep a group until its grammar is compiled; then `wake` is called and the group is due."""
        compiled = self._compiled.get(grammar)
        if compiled is None:
            # One that fails is kept as well, so that it fails again without work.
            try:
                compiled = self._compiled[grammar] = self._submit(grammar)
            except RuntimeError:  # no thread can be started; this failure is not kept
                self._held[add.group] = _Held(add, _failed("no thread to compile it can be started now"), set())
                return
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        self._held[add.group] = _Held(add, compiled, set())
        if (wake := self._wake) is None:
            compiled.exception()
        else:
            compiled.add_done_callback(lambda _: wake())

    def release(self) -> list[tuple[Add, Compiled | str, frozenset[int]]]:
        """Return the groups that are due, in order of arrival: each with its grammar, or why it has none, and the
        choices that were ended in the meantime.
        """
        due = [held for held in self._held.values() if held.compiled.done()]
        for held in due:
            del self._held[held.add.group]
        return [(held.add, _outcome(held.compiled), frozenset(held.aborted)) for held in due]

    def abort(self, group: int, choices: Collection[int] | None) -> None:
        """End choices of a held group, or all of them if `choices` is None; groups that are not held are ignored."""
        if held := self._held.get(group):
            held.aborted.update(range(len(held.add.choices)) if choices is None else choices)
            if held.aborted.issuperset(range(len(held.add.choices))):
                del self._held[group]

    def _submit(self, grammar: str) -> Future[Compiled]:
        stack = threading.stack_size(_STACK)  # for the thread that the first submit starts
        try:
            return self._thread.submit(self._compile, grammar)
        finally:
            threading.stack_size(stack)

    def _compile(self, grammar: str) -> Compiled:
        """Compile a grammar; runs in the thread."""
        if self._compiler is None:
            if self._tokenizer is None:
                raise GrammarError("this engine was started without its tokenizer, so it does not support grammars")
            self._compiler = Compiler(self._tokenizer, self._ready.vocab_size, self._ready.eos_tokens)
        return self._compiler.compile(grammar)

    # Sequences under a grammar

    def follow(self, group: int, sequences: Iterable[int], compiled: Compiled) -> None:
        """Put these sequences, which have no token yet, under a grammar."""
        for sequence in sequences:
            self._followers[sequence] = _Follower(group, compiled)

    def masks(self, batch: Batch) -> Mapping[int, bytes]:
        """Return the masks of a batch's draws, by sequence, without those of sequences that have no grammar."""
        if not self._followers:
            return {}
        found = [(draw.sequence, self._followers.get(draw.sequence)) for draw in batch.draws]
        return {sequence: follower.mask() for sequence, follower in found if follower is not None}

    def advance(self, tokens: Iterable[tuple[int, int]]) -> dict[int, str]:
        """Process drawn tokens, as (sequence, token); return the groups that cannot go on, each with the reason."""
        failed: dict[int, str] = {}
        for sequence, token in tokens if self._followers else ():
            if (follower := self._followers.get(sequence)) is None:
                continue
            if follower.matcher is None:
                follower.matcher = follower.compiled.matcher.deep_copy()
            # A matcher that failed when its mask was computed accepts a stop token without reporting an error.
            if not follower.matcher.consume_token(token) or follower.matcher.is_error():
                failed[follower.group] = f"the grammar could not be followed: {reason(follower.matcher)}"
        return failed

    def keep(self, living: Callable[[int], bool]) -> None:
        """Forget the sequences that are not living any more."""
        for sequence in [sequence for sequence in self._followers if not living(sequence)]:
            del self._followers[sequence]


def _failed(why: str) -> Future[Compiled]:
    """Return a compilation that has failed."""
    failed: Future[Compiled] = Future()
    failed.set_exception(GrammarError(why))
    return failed


def _outcome(compiled: Future[Compiled]) -> Compiled | str:
    error = compiled.exception()
    if error is None:
        return compiled.result()
    if not isinstance(error, GrammarError):  # no grammar may end the core
        _log.error("a grammar could not be compiled", exc_info=error)
        return "the grammar could not be compiled"
    return f"the grammar cannot be used: {error}"

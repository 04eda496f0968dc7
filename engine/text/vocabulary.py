"""A GGUF file's vocabulary as a `tokenizers.Tokenizer`, built without torch and without transformers.

A GGUF names its splitting rule (`tokenizer.ggml.pre`) instead of containing it. The rules here are those of the models'
own tokenizer.json files, for the families that the engine runs. A rule that is not in the table is refused: text that
is split wrongly still gives answers, only worse ones, and nobody would see why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from engine.errors import ModelError
from engine.ggufmeta import Value

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # values of tokenizer.ggml.token_type

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Splitting:
    """How text is split before the merges. ignore_merges: a piece that is a token is taken whole.

    begins: whether prompts begin with the BOS token unless the file says otherwise, as in llama.cpp.
    """

    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    ignore_merges: bool = False
    nfc: bool = False
    begins: bool = False


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_alone() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


def _by_regex(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    return lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_SPLITTINGS: Mapping[str, _Splitting] = {
    "gpt-2": _Splitting(_byte_level),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _Splitting(_digits_alone)),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3"), _Splitting(_by_regex(_LLAMA3), ignore_merges=True, begins=True)
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _Splitting(_by_regex(_QWEN2), nfc=True)),
    "tekken": _Splitting(_by_regex(_TEKKEN), ignore_merges=True, begins=True),
}


def tokenizer_from_metadata(metadata: Mapping[str, Value]) -> Tokenizer:
    """Build the tokenizer that a GGUF's metadata describes; raise ModelError if that is not possible."""
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise ModelError("the numbers of token types and tokens differ")
    try:
        tokenizer = _without_added(metadata, tokens, [kind == _NORMAL for kind in kinds])
        tokenizer.add_special_tokens(
            [AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, kinds, strict=True) if k == _CONTROL]
        )
        tokenizer.add_tokens(
            [AddedToken(t, normalized=False) for t, k in zip(tokens, kinds, strict=True) if k == _USER_DEFINED]
        )
    except ModelError:
        raise
    except BaseException as error:  # the Rust side raises plain Exception, or panics, which is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"the vocabulary cannot be used: {error}") from error
    _begin_and_end(tokenizer, metadata, tokens)
    return tokenizer


def _without_added(metadata: Mapping[str, Value], tokens: list[str], normal: list[bool]) -> Tokenizer:
    match metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            return _byte_level_bpe(metadata, tokens)
        case "llama":
            return _sentencepiece_bpe(metadata, tokens, normal)
        case other:
            raise ModelError(f"a vocabulary of the kind {other!r} is not supported (gpt2 and llama are)")


def _list(metadata: Mapping[str, Value], key: str) -> list[Value]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value:
        raise ModelError(f"{key} is missing")
    return value


def _strings(metadata: Mapping[str, Value], key: str) -> list[str]:
    value = _list(metadata, key)
    strings = [item for item in value if isinstance(item, str)]
    if len(strings) != len(value):
        raise ModelError(f"{key} is not a list of strings")
    return strings


def _byte_level_bpe(metadata: Mapping[str, Value], tokens: list[str]) -> Tokenizer:
    splitting = _splitting(metadata)
    if splitting is None:
        raise ModelError(
            f"the splitting rule {metadata.get('tokenizer.ggml.pre')!r} (tokenizer.ggml.pre) is not supported;"
            " use the model's folder with tokenizer.json"
        )
    merges = [_pair(merge) for merge in _strings(metadata, "tokenizer.ggml.merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=splitting.ignore_merges))
    if splitting.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitting.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _splitting(metadata: Mapping[str, Value]) -> _Splitting | None:
    """Return the splitting rule that the file names; None if it names none, or one that is not known."""
    name = metadata.get("tokenizer.ggml.pre")
    return _SPLITTINGS.get(name) if isinstance(name, str) else None


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece_bpe(metadata: Mapping[str, Value], tokens: list[str], normal: list[bool]) -> Tokenizer:
    """Return SentencePiece's BPE: the file has no merges, only scores, and bytes for what the vocabulary lacks."""
    scores = [float(s) for s in _list(metadata, "tokenizer.ggml.scores") if isinstance(s, int | float)]
    if len(scores) != len(tokens):
        raise ModelError("the numbers of scores and tokens differ")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    unk_token = tokens[unknown] if isinstance(unknown, int) and 0 <= unknown < len(tokens) else None
    tokenizer = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=_merges_of(vocabulary, {t: s for t, s, n in zip(tokens, scores, normal, strict=True) if n}),
            unk_token=unk_token,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces: normalizers.Normalizer = normalizers.Replace(" ", "▁")
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        spaces = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
    tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _merges_of(vocabulary: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the merges that a scored vocabulary implies: every token's splits into two tokens, best score first.

    SentencePiece joins the neighbours whose joint token scores highest, so the order of the merges is the order of the
    joint tokens' scores; splits of one token are ordered by their parts' numbers.
    """
    found = [
        (-score, vocabulary[token[:cut]], vocabulary[token[cut:]], token[:cut], token[cut:])
        for token, score in scores.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    found.sort()
    return [(left, right) for *_, left, right in found]


def _begin_and_end(tokenizer: Tokenizer, metadata: Mapping[str, Value], tokens: list[str]) -> None:
    """Make prompts that are no chat begin with the BOS token and end with the EOS token, if the file says so.

    A file that does not say gets the BOS token if that is usual for its kind.
    """
    splitting = _splitting(metadata)
    begins = metadata.get("tokenizer.ggml.model") == "llama" or (splitting is not None and splitting.begins)
    added: dict[str, int] = {}
    for name, default in (("bos", begins), ("eos", False)):
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if not metadata.get(f"tokenizer.ggml.add_{name}_token", default) or not isinstance(number, int):
            continue
        if not 0 <= number < len(tokens):
            raise ModelError(f"the {name.upper()} token {number} is outside the vocabulary")
        added[name] = number
    if added:
        # Under names of their own, because a token's own may contain the separators of a template's pieces.
        pieces = [piece for piece in ("bos", "$A", "eos") if piece == "$A" or piece in added]
        single = " ".join([f"{piece}:0" for piece in pieces])
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=list(added.items()))


def special_strings(metadata: Mapping[str, Value]) -> dict[str, str]:
    """Return the named special tokens that a chat template may use (`bos_token`, `eos_token` ...), as strings."""
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    found = {}
    for key, name in names.items():
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            found[name] = tokens[number]
    return found

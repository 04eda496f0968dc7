"""Grammars over a vocabulary of a few tokens, where every mask can be checked against all texts there are."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from engine.batch import Batch, Chunk, Draw
from engine.errors import GrammarError
from engine.grammar import MOST_BYTES, Compiled, Compiler, Grammars
from engine.messages import Add, Sampling
from engine.server.asking.structure import any_rule, grammar_of, regex_rule, text_rule
from engine.text.detokenizer import TokenBytes
from tests.fakes.runner import ready

TOKENS = ["a", "b", "c", "ab", "abc", "bc", "aa", "1", "12", "2"]
END, MARK = 10, 11
VOCABULARY = 21  # of the model: more than the tokenizer knows, and no whole number of bytes


def tokenizer() -> str:
    """A tokenizer.json of TOKENS and two special tokens."""
    vocabulary = {token: number for number, token in enumerate(TOKENS)}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, [("a", "b"), ("ab", "c"), ("b", "c"), ("a", "a"), ("1", "2")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<mark>", special=True)])
    return made.to_str()


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(tokenizer(), VOCABULARY, {END})


def allowed(mask: bytes) -> set[int]:
    return {token for token in range(len(mask) * 8) if mask[token // 8] >> token % 8 & 1}


def texts(words: Iterable[str]) -> str:
    return grammar_of(any_rule([text_rule(word) for word in words]))


def truth(language: set[str], written: str) -> set[int]:
    """The tokens that lead from `written` on to a text of the language; the last token if it is one."""
    found = {i for i, token in enumerate(TOKENS) if any(text.startswith(written + token) for text in language)}
    return found | {END} if written in language else found


LANGUAGES = {
    "one text": (texts(["abcab"]), {"abcab"}),
    "some texts": (texts(["a", "ab", "abcb", "cc", "12"]), {"a", "ab", "abcb", "cc", "12"}),
    "nothing is a text": (texts(["", "b"]), {"", "b"}),
    "a regex": (
        grammar_of(regex_rule("(ab|c){1,2}1?2")),
        {a + b + c + "2" for a in ("ab", "c") for b in ("ab", "c", "") for c in ("1", "")},
    ),
    "rules": (
        grammar_of("pair pair?", 'pair: LETTER "1"', "LETTER: /[a-c]/"),
        {f"{a}1" for a in "abc"} | {f"{a}1{b}1" for a in "abc" for b in "abc"},
    ),
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_mask_lets_through_what_leads_to_a_text_and_nothing_else(compiler: Compiler, name: str) -> None:
    grammar, language = LANGUAGES[name]
    reached = set()
    pending: list[tuple[str, LLMatcher]] = [("", compiler.compile(grammar).matcher)]
    while pending:
        written, matcher = pending.pop()
        mask, right = allowed(matcher.compute_bitmask()), truth(language, written)
        assert mask <= right, written
        # Where the next letters are given, the library keeps to one way of writing them in tokens: the tokenizer's.
        given = len({text[len(written)] for text in language if text.startswith(written) and text != written}) == 1
        assert (mask == right) or (given and mask and written not in language), written
        for token in mask - {END}:
            after = matcher.deep_copy()
            assert after.consume_token(token)
            pending.append((written + TOKENS[token], after))
        if END in mask:
            reached.add(written)
    assert reached == language


def test_a_special_token_stands_where_its_id_is_named_and_nowhere_else(compiler: Compiler) -> None:
    matcher = compiler.compile(grammar_of(f'/(?s:.*)/ <[{MARK}]> "b"')).matcher
    assert allowed(matcher.compute_bitmask()) == {*range(len(TOKENS)), MARK}
    matcher.consume_tokens([0, MARK])
    assert allowed(matcher.compute_bitmask()) == {1}


def test_numbers_beyond_the_tokenizer_are_never_let_through(compiler: Compiler) -> None:
    mask = compiler.compile(grammar_of(regex_rule("(?s:.*)"))).mask
    assert len(mask) == 3
    assert allowed(mask) == {*range(len(TOKENS)), END}


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (grammar_of("nothing"), 'at 1(8): unknown name: "nothing"'),
        (grammar_of('%json {"oneOf": [{"type": "object"}, {}]}'), "oneOf constraints are not supported; use anyOf"),
        (grammar_of('%json {"not": {}}'), 'failed to compile JSON schema: Unimplemented keys: ["not"]'),
        (grammar_of(regex_rule("(?=a)b")), "look-around, including look-ahead and look-behind, is not supported"),
        (grammar_of(regex_rule("x")), "it accepts no text at all"),  # no token is an x
        ("{", "EOF while parsing"),
        (" " * MOST_BYTES + "x", f"it is longer than {MOST_BYTES} bytes"),
        ("é" * (MOST_BYTES // 2 + 1), f"it is longer than {MOST_BYTES} bytes"),
    ],
)
def test_what_cannot_be_compiled_has_a_reason(compiler: Compiler, grammar: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=f"^.*{re.escape(reason)}") as error:
        compiler.compile(grammar)
    assert "\n" not in str(error.value)


def test_a_reason_is_no_longer_than_a_line(compiler: Compiler) -> None:
    with pytest.raises(GrammarError) as error:
        compiler.compile(grammar_of("x" * 1000))
    assert len(str(error.value)) == 300


@pytest.mark.parametrize(
    ("tokens", "stop", "reason"),
    [
        (tokenizer(), set(), "no token that ends an answer"),
        (tokenizer().replace("ByteLevel", "Unheard"), {END}, "are not supported with this model's tokenizer"),
    ],
)
def test_a_model_that_takes_no_grammar_says_why(tokens: str, stop: set[int], reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        Compiler(tokens, VOCABULARY, stop)


def test_ends_outside_of_the_vocabulary_are_left_out() -> None:
    compiled = Compiler(tokenizer(), VOCABULARY, {END, -1, VOCABULARY, 10**30}).compile(texts(["a"]))
    assert allowed(compiled.mask) == {TOKENS.index("a")}
    with pytest.raises(GrammarError, match="no token that ends an answer"):
        Compiler(tokenizer(), VOCABULARY, {VOCABULARY})


@pytest.mark.parametrize("text", ["<end>", "a<end>b", "<mark>", "<end><end>"])
def test_a_text_may_spell_a_special_token(text: str) -> None:
    """By tokens that are none: those are no text."""
    letters = sorted({*"<>ab", *"end", *"mark"})
    made = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<mark>", special=True)])
    end = made.token_to_id("<end>")
    assert end is not None
    compiled = Compiler(made.to_str(), VOCABULARY, {end}).compile(texts([text]))
    matcher, mask = compiled.matcher.deep_copy(), compiled.mask
    for letter in text:
        assert allowed(mask) == {letters.index(letter)}
        matcher.consume_token(letters.index(letter))
        mask = compiled.next(matcher)
    assert allowed(mask) == {end} and not matcher.is_error()


SPACED = {
    "prepended": (normalizers.Prepend("▁"), None),
    "prepended first": (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None),
    "metaspace": (None, pre_tokenizers.Metaspace(prepend_scheme="always")),
    "metaspace among others": (
        None,
        pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace(prepend_scheme="first")]),
    ),
    "byte letters": (None, pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)),
}


@pytest.mark.parametrize("grammar", [texts(["yes", "no"]), '{"grammars": [{"json_schema": {"enum": ["yes", "no"]}}]}'])
@pytest.mark.parametrize("how", SPACED)
def test_a_tokenizer_that_puts_a_space_before_a_text_puts_none_into_a_grammar(how: str, grammar: str) -> None:
    """As those of Llama 2, Mistral and Phi-3 do; one of bytes may be told to."""
    spaced = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    space, decoder = ("Ġ", decoders.ByteLevel()) if how == "byte letters" else ("▁", spaced)
    letters = sorted({space, *"yesno", '"'})
    made = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.normalizer, made.pre_tokenizer = SPACED[how]
    made.decoder = decoder
    made.add_special_tokens([AddedToken("<end>", special=True)])
    end = made.token_to_id("<end>")
    assert end is not None
    compiled = Compiler(made.to_str(), VOCABULARY, {end}).compile(grammar)
    matcher, mask, written = compiled.matcher.deep_copy(), compiled.mask, ""
    while (able := allowed(mask) - {end}) and len(written) < 9:
        letter = max(able, key=lambda token: letters[token])
        written += letters[letter]
        matcher.consume_token(letter)
        assert not matcher.is_error()
        mask = compiled.next(matcher)
    assert written.strip('"') == "yes" and allowed(mask) == {end}


def test_without_the_package_grammars_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(GrammarError, match="need the llguidance package"):
        Compiler(tokenizer(), VOCABULARY, {END})


SPELLINGS = {
    "byte letters": (["Ġthe", "Ċ", "Ã", "©", "<0x0A>"], decoders.ByteLevel()),
    "spaced, with bytes": (
        ["▁the", "▁▁", "<0x0A>", "<0xC3>", "é"],
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    ),
    "spaced, first one stripped": (
        ["▁", "▁the", "<0x0A>", "é"],
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_token_stands_for_what_the_client_is_shown(name: str) -> None:
    tokens, decoder = SPELLINGS[name]
    made = tokenizers.Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, []))
    made.decoder = decoder
    made.add_special_tokens([AddedToken("<end>", special=True)])
    made.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    there, shown = LLTokenizer(made.to_str()), TokenBytes.of(made)
    for token in range(made.get_vocab_size()):
        assert there.decode_bytes([token]) == (shown.bytes_of(token) or b"<end>")
    assert there.is_special_token(len(tokens))


# What the core does with them


class Kept:
    """Grammars of a core with this vocabulary, and an event for its waking."""

    def __init__(self, tokens: str | None) -> None:
        about = replace(ready(vocab_size=VOCABULARY), eos_tokens=frozenset({END}))
        self.awake = threading.Event()
        self.grammars = Grammars(tokens, about, self.awake.set)

    def hold(self, group: int, grammar: str, n: int = 2) -> None:
        add = Add.alike(group, (0,), n, 0, 8, Sampling(), frozenset({END}))
        self.grammars.hold(add, grammar)

    def release(self) -> list[tuple[int, Compiled | str, frozenset[int]]]:
        while not self.grammars.due:
            assert self.awake.wait(60)
            self.awake.clear()
        return [(add.group, compiled, aborted) for add, compiled, aborted in self.grammars.release()]


def batch(*sequences: int) -> Batch:
    draws = tuple([Draw(sequence, 0, 1, Sampling()) for sequence in sequences])
    return Batch(chunks=(Chunk(sequences[0], (0,), 0, (0,), draws),))


def compiled(grammar: str) -> Compiled:
    kept = Kept(tokenizer())
    kept.hold(0, grammar)
    ((_, found, _),) = kept.release()
    assert isinstance(found, Compiled)
    return found


def test_a_group_waits_for_its_grammar_and_equal_texts_are_compiled_once() -> None:
    kept = Kept(tokenizer())
    kept.hold(1, texts(["a"]))
    kept.hold(2, texts(["b"]), n=3)
    assert kept.grammars.held == 5
    kept.hold(3, texts(["a"]))
    released: list[tuple[int, object, frozenset[int]]] = []
    while len(released) < 3:
        released += kept.release()
    by_group = {group: found for group, found, _ in released}
    assert by_group[1] is by_group[3] is not by_group[2]
    assert (kept.grammars.held, kept.grammars.due) == (0, False)


def test_the_grammar_that_was_not_used_for_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.grammar._KEPT", 2)
    kept = Kept(tokenizer())
    found = []
    for group, letter in enumerate("abacab"):
        kept.hold(group, texts([letter]))
        found += [compiled for _, compiled, _ in kept.release()]
    assert found[0] is found[2] is found[4]
    assert found[1] is not found[5]


def test_a_grammar_that_cannot_be_compiled_and_a_core_without_tokens_say_so() -> None:
    kept = Kept(tokenizer())
    kept.hold(1, grammar_of("nothing"))
    assert kept.release() == [(1, 'the grammar cannot be used: at 1(8): unknown name: "nothing"', frozenset())]
    bare = Kept(None)
    bare.hold(1, texts(["a"]))
    ((_, why, _),) = bare.release()
    assert isinstance(why, str)
    assert "started without its tokenizer" in why


def test_choices_are_ended_while_their_grammar_is_compiled() -> None:
    kept = Kept(tokenizer())
    for group in (1, 2, 3):
        kept.hold(group, texts([str(group)]), n=3)
    kept.grammars.abort(1, None)
    kept.grammars.abort(2, (0, 2))
    kept.grammars.abort(3, (0, 1))
    kept.grammars.abort(3, (2,))
    kept.grammars.abort(9, None)
    assert kept.grammars.held == 1
    assert [(group, aborted) for group, _, aborted in kept.release()] == [(2, frozenset({0, 2}))]
    assert not kept.grammars.due


def test_each_sequence_follows_the_grammar_on_its_own() -> None:
    kept = Kept(tokenizer())
    kept.hold(1, texts(["ab", "ac", "b"]))
    ((_, found, _),) = kept.release()
    assert isinstance(found, Compiled)
    kept.grammars.follow(1, [4, 5], found)
    first = kept.grammars.masks(batch(4, 5, 6))
    assert {sequence: allowed(mask) for sequence, mask in first.items()} == {4: {0, 1, 3}, 5: {0, 1, 3}}
    assert kept.grammars.advance([(4, 0), (5, 1), (6, 2)]) == {}
    # Another group of the same text begins at its beginning.
    kept.grammars.follow(2, [7], found)
    masks = {sequence: allowed(mask) for sequence, mask in kept.grammars.masks(batch(4, 5, 7)).items()}
    assert masks == {4: {1, 2}, 5: {END}, 7: {0, 1, 3}}
    kept.grammars.keep(lambda sequence: sequence == 7)
    assert list(kept.grammars.masks(batch(4, 5, 7))) == [7]


def test_a_token_against_the_grammar_fails_its_group() -> None:
    kept = Kept(tokenizer())
    kept.grammars.follow(1, [4, 5], compiled(texts(["ab"])))
    assert kept.grammars.advance([(4, 3)]) == {}
    ((group, why),) = kept.grammars.advance([(5, 2)]).items()
    assert group == 1
    assert why.startswith("the grammar could not be followed: ")


def test_a_matcher_that_fails_at_its_mask_fails_its_group_and_does_not_end_as_if_it_were_complete() -> None:
    kept = Kept(tokenizer())
    kept.grammars.follow(1, [4], compiled(grammar_of(regex_rule("[ab][xy]"))))  # no token is an x or a y
    assert kept.grammars.advance([(4, 0)]) == {}
    assert allowed(kept.grammars.masks(batch(4))[4]) == {END}
    said = "the grammar could not be followed: it accepts no text at all"
    assert kept.grammars.advance([(4, END)]) == {1: said}


def test_without_a_grammar_nothing_is_imported() -> None:
    code = "import sys, engine.core; print('llguidance' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"

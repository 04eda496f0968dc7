"""What is asked, and that nothing else counts as an answer."""

import pytest

from bench.engine.cells import Answer, Asked, Cell, WrongAnswer, cells, check
from bench.engine.prompts import WORDS, prompt


def words(text: str) -> list[int]:
    """A tokenizer: two tokens for a word."""
    return [token for word in text.split() for token in (WORDS.index(word), 1000)]


@pytest.mark.parametrize("length", [1, 2, 509, 1999])
def test_a_prompt_has_exactly_its_length(length: int) -> None:
    assert len(prompt(words, length, 3)) == length


def test_prompts_with_numbers_in_a_row_begin_with_different_words() -> None:
    assert len({prompt(words, 8, number)[0] for number in range(32)}) == 32


def test_a_prompts_number_decides_it() -> None:
    again = [prompt(words, 40, number) for number in (0, 0, len(WORDS))]
    assert again[0] == again[1]
    assert again[0][0] == again[2][0]
    assert again[0] != again[2]


def test_a_tokenizer_that_gives_less_than_a_token_for_a_word_is_found_out() -> None:
    with pytest.raises(ValueError, match="were 3 tokens only"):
        prompt(lambda text: [1, 2, 3], 5, 0)


def test_every_length_with_every_n_and_the_widest_apart() -> None:
    assert cells((109, 7), (1, 4)) == [Cell(109, 1), Cell(109, 4), Cell(7, 1), Cell(7, 4), Cell(7, 4, apart=True)]
    assert cells((109,), (1,)) == [Cell(109, 1)]


ASKED = Asked(((1, 2, 3), (4, 5, 6)), n=4, new=10)


@pytest.mark.parametrize("given", [6, None])
def test_an_answer_with_all_tokens_counts(given: int | None) -> None:
    check(ASKED, Answer(1.0, 0.1, 0.2, 80, given))


@pytest.mark.parametrize(
    ("tokens", "given", "says"),
    [(79, 6, "79 tokens came, not 80"), (81, None, "81 tokens"), (80, 24, "the prompts were 24 tokens to it, not 6")],
)
def test_an_answer_with_others_does_not(tokens: int, given: int | None, says: str) -> None:
    with pytest.raises(WrongAnswer, match=says):
        check(ASKED, Answer(1.0, 0.1, 0.2, tokens, given))

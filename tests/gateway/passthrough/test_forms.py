"""Which models a form names."""

from __future__ import annotations

from contextlib import suppress

import pytest

from nproxy.gateway.passthrough.forms import models_of, named_in


def form(*parts: tuple[str, str]) -> bytes:
    """A form of parts, each its Content-Disposition and its content."""
    written = "".join(f"--b\r\nContent-Disposition: {head}\r\n\r\n{content}\r\n" for head, content in parts)
    return f"{written}--b--\r\n".encode()


MODEL = ('form-data; name="model"', "mine")
LANGUAGE = ('form-data; name="language"', "en")
FILE = ('form-data; name="file"; filename="a.wav"', "RIFF\r\n\x00")
LOOKS_LIKE_A_PART = 'Content-Disposition: form-data; name="model"\r\n\r\nmine\r\n'
TYPED = ('form-data; name="model"\r\nContent-Type: text/plain', "mine")


@pytest.mark.parametrize(
    "parts", [(MODEL, LANGUAGE), (LANGUAGE, MODEL, LANGUAGE), (FILE, MODEL), (TYPED, LANGUAGE, FILE)]
)
def test_the_model_is_its_own_parts_content(parts: tuple[tuple[str, str], ...]) -> None:
    assert named_in(form(*parts)).model == "mine"
    assert models_of(form(*parts)) == ["mine"]


@pytest.mark.parametrize(
    "parts", [(MODEL, LANGUAGE), (LANGUAGE, MODEL, LANGUAGE), (FILE, MODEL), (TYPED, LANGUAGE, FILE)]
)
def test_its_place_is_that_of_the_name(parts: tuple[tuple[str, str], ...]) -> None:
    whole = form(*parts)
    place = named_in(whole).place
    assert place is not None and whole[place] == b"mine"
    begins = [whole[:end] for end in range(len(whole)) if named_in(whole[:end]).model is not None]
    assert begins and all(named_in(begin).place == place for begin in begins), "as soon as it is known"
    first = whole.replace(b"Content-Disposition", b"Content-Type: text/plain\r\nContent-Disposition")
    place = named_in(first).place
    assert place is not None and first[place] == b"mine"


@pytest.mark.parametrize(
    "text",
    [
        form((FILE[0], f"x\r\n{LOOKS_LIKE_A_PART}")),
        form((FILE[0], LOOKS_LIKE_A_PART)),
        form(('form-data; name="model"', "mine\r\nand more")),
        b"a preamble\r\n" + form(MODEL),
        b'Content-Disposition: form-data; name="model"\r\n\r\nmine\r\n--b--\r\n',
        form(LANGUAGE),
        b"",
    ],
)
def test_there_is_no_place_where_it_may_be_something_else(text: bytes) -> None:
    assert named_in(text).place is None


def test_no_model() -> None:
    assert named_in(form(LANGUAGE, FILE)).model is None
    assert models_of(form(LANGUAGE, FILE)) == []
    assert named_in(form(MODEL)[:-12]).model is None, "it is not all here"


def test_a_model_is_found_wherever_it_stands() -> None:
    within = ('form-data; name="file"; filename="a"', form(('form-data; name="MODEL"', "other")).decode())
    assert models_of(form(MODEL, within, MODEL)) == ["mine", "other", "mine"]


@pytest.mark.parametrize(
    "head",
    [
        "form-data; name*=utf-8''model",
        "form-data; name*0=mo; name*1=del",
        'form-data; name = "model"',
        "form-data; name=model",
        'form-data; name="mod\\el"',
        'form-data;\r\n name="model"',
        'form-data; name="x"\r\n ; name="model"',
        'form-data; name="x"; name="model"',
        'form-data; name="x"; filename="\\"; name="model"',
    ],
)
def test_names_that_servers_read_differently(head: str) -> None:
    with pytest.raises(ValueError, match="several ways"):
        models_of(form(MODEL, (head, "other")))


@pytest.mark.parametrize("content", ["", "a\r\nb", "x" * 257])
def test_a_model_is_a_short_line(content: str) -> None:
    with pytest.raises(ValueError, match="short line"):
        models_of(form(MODEL, ('form-data; name="model"', content)))


@pytest.mark.timeout(20)  # a search from each line to the end of the form would take many minutes
@pytest.mark.parametrize(
    "text",
    [
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n',
        b'Content-Disposition: form-data; name="model"\r\n' * 2 + b"\r\nx\r\n--",
        b"content-disposition:;",
        b"content-disposition: form-data; name=\r\n",
        b"content-disposition \t",
    ],
)
def test_nothing_takes_more_than_in_proportion_to_the_form(text: bytes) -> None:
    long = text * (2_000_000 // len(text))
    named_in(long)
    with suppress(ValueError):
        models_of(long)


def test_two_names_in_one_part() -> None:
    """A server may take either."""
    with pytest.raises(ValueError, match="several ways"):
        models_of(form(('form-data; name="model"\r\nContent-Disposition: form-data; name="model"', "mine")))

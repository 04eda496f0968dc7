"""Secrets: from the environment or a file, and shown nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from nproxy.config import Config, ConfigError, load, summarise

CANARY = "canary-7f3a"


def upstream(key: str, more: str = "") -> str:
    return f"upstreams:\n- name: a\n  replicas: [http://a]\n  api_key: {key}\n{more}"


def loaded(folder: Path, text: str, environ: dict[str, str] | None = None) -> Config:
    file = folder / "nproxy.yaml"
    file.write_text(text)
    return load(file, environ or {})


def key_of(config: Config) -> str:
    key = config.upstreams[0].api_key
    assert isinstance(key, SecretStr)
    return key.get_secret_value()


def test_a_secret_comes_from_the_environment(tmp_path: Path) -> None:
    assert key_of(loaded(tmp_path, upstream("${FLEET_KEY}"), {"FLEET_KEY": CANARY})) == CANARY


def test_a_secret_comes_from_a_file_beside_the_settings(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{CANARY}\n")
    assert key_of(loaded(tmp_path, upstream("file:key"))) == CANARY
    assert key_of(loaded(tmp_path, upstream(f"file:{tmp_path}/key"))) == CANARY


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("${FLEET_KEY}", "environment variable FLEET_KEY is not set"),
        ("Bearer ${FLEET_KEY}", "must be either ${NAME} alone or the secret itself, not a mixture"),
        ("file:none", "cannot read"),
        ("file:empty", "is empty"),
        ("17", "must be text: ${NAME}, file:PATH, or the secret itself"),
        ('"a\\nb"', "contains characters that are not allowed in an HTTP header"),
    ],
)
def test_a_secret_that_cannot_be_had_is_an_error_at_its_line(tmp_path: Path, written: str, reason: str) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, upstream(written))
    (problem,) = raised.value.problems
    assert str(problem).startswith(f"{tmp_path}/nproxy.yaml:4: upstreams[0].api_key: ")
    assert reason in problem.message


@pytest.mark.parametrize("word", ["passthrough", "none"])
def test_a_word_is_not_a_secret(tmp_path: Path, word: str) -> None:
    assert loaded(tmp_path, upstream(word)).upstreams[0].api_key == word


def test_a_secret_is_in_no_repr_summary_or_dump(tmp_path: Path) -> None:
    config = loaded(tmp_path, upstream(CANARY))
    shown = [repr(config), str(config), summarise(config, ()), config.model_dump_json(), repr(config.model_dump())]
    assert not [text for text in shown if CANARY in text]
    assert "key own" in summarise(config, ())


@pytest.mark.parametrize(
    "more",
    [
        "  nonsense: 1\n",
        "  n: 7\n",
        "- {name: a, replicas: ['http://b']}\n",  # an error that concerns the whole, with the whole as its input
        "listen: 3\n",
        f"auth: {{api_key:{CANARY}}}\n",  # without the space it is a key
    ],
)
def test_a_secret_is_in_no_error(tmp_path: Path, more: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, upstream(CANARY, more))
    error: BaseException | None = raised.value
    assert CANARY not in repr(raised.value.problems)
    assert CANARY not in str(error)
    assert raised.value.__context__ is None  # the cause would hold the inputs

"""The file of API keys: read, and every error at its line."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from nproxy.config import Config, ConfigError, Key, load, read_keys

A, B = "sha256:" + "a1" * 32, "sha256:" + "B2" * 32


def read(folder: Path, text: str) -> tuple[Key, ...]:
    file = folder / "keys.yaml"
    file.write_text(text)
    return read_keys(file)


def test_a_key_with_everything(tmp_path: Path) -> None:
    text = f"""
keys:
- name: team-a
  hash: [{A}, {B}]
  weight: 2
  choices: 256
  requests_per_minute: 60
  choices_per_minute: 600
  tokens_per_minute: 100000
  models: [m]
  expires: 2027-01-31
  disabled: true
- {{name: b, hash: sha256:{"c" * 64}}}
"""
    first, second = read(tmp_path, text)
    assert first == Key(
        name="team-a",
        hash=(b"\xa1" * 32, b"\xb2" * 32),
        weight=2,
        choices=256,
        requests_per_minute=60,
        choices_per_minute=600,
        tokens_per_minute=100_000,
        models=("m",),
        expires=datetime(2027, 1, 31, tzinfo=UTC),
        disabled=True,
    )
    assert second == Key(name="b", hash=(b"\xcc" * 32,))


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31 12:30", datetime(2027, 1, 31, 12, 30, tzinfo=UTC)),
        ("2027-01-31T12:30:00+02:00", datetime(2027, 1, 31, 12, 30, tzinfo=timezone(timedelta(hours=2)))),
    ],
)
def test_a_key_ends_at_the_begin_of_its_day_or_at_its_time(tmp_path: Path, written: str, moment: datetime) -> None:
    (key,) = read(tmp_path, f"keys: [{{name: a, hash: '{A}', expires: '{written}'}}]")
    assert key.expires == moment


def test_a_moment_without_a_zone_is_utc_wherever_the_machine_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC-9")
        time.tzset()
        (key,) = read(tmp_path, f"keys: [{{name: a, hash: '{A}', expires: 2027-01-31}}]")
    time.tzset()
    assert key.expires == datetime(2027, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1: keys: is required"),
        ("keys: []", "1: keys: must not be empty"),
        ("- name: a\n  hash: HASH", "1: must be a mapping of keys: and the list of keys"),
        ("keys:\n- hash: HASH", "2: keys[0].name: is required"),
        ("keys:\n- name: a", "2: keys[0].hash: is required"),
        ("keys:\n- name: a\n  hash: []", "3: keys[0].hash: must not be empty"),
        (
            "keys:\n- name: a\n  hash: sk-1234",
            "3: keys[0].hash: must be sha256: and 64 hexadecimal digits, as nproxy keys prints it",
        ),
        (
            "keys:\n- name: a\n  hash:\n  - HASH\n  - 17",
            "5: keys[0].hash[1]: must be sha256: and 64 hexadecimal digits, as nproxy keys prints it",
        ),
        (
            "keys:\n- name: team a\n  hash: HASH",
            "2: keys[0].name: must be 1 to 64 letters, digits, dots, dashes and underscores,"
            " and begin with a letter or digit",
        ),
        ("keys:\n- name: a\n  hash: HASH\n  wieght: 2", "4: keys[0].wieght: unknown key; did you mean weight?"),
        (
            "keys:\n- name: a\n  hash: HASH\n  expires: soon",
            "4: keys[0].expires: must be a date such as 2027-01-31, or a date and a time",
        ),
        ("keys:\n- name: a\n  hash: HASH\n  models: []", "4: keys[0].models: must not be empty"),
        (
            "keys:\n- {name: a, hash: HASH}\n- {name: a, hash: OTHER}",
            "3: keys[1].name: occurs twice; put the second hash into the list of the first entry",
        ),
        ("keys:\n- {name: a, hash: HASH}\n- {name: b, hash: [OTHER, HASH]}", "3: keys[1].hash: occurs twice"),
        ("keys:\n- {name: a, hash: [HASH, OTHER, HASH]}", "2: keys[0].hash: occurs twice"),
    ],
)
def test_an_error_is_told_at_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text.replace("HASH", A).replace("OTHER", B))
    assert str(raised.value) == f"{tmp_path}/keys.yaml:{problem}"
    assert raised.value.__cause__ is None, "a cause holds what was written"


def test_settings_with_a_bad_keys_file_are_bad(tmp_path: Path) -> None:
    (tmp_path / "nproxy.yaml").write_text("n_policy: {}\nauth: {api_keys_file: keys.yaml}")
    wrong = r"nproxy\.yaml:2: auth\.api_keys_file: cannot read .*/keys\.yaml: no such file or directory"
    with pytest.raises(ConfigError, match=wrong):
        load(tmp_path / "nproxy.yaml", {})
    (tmp_path / "keys.yaml").write_text("keys:\n- name: a\n")
    with pytest.raises(ConfigError, match=r"keys\.yaml:2: keys\[0\]\.hash: is required"):
        load(tmp_path / "nproxy.yaml", {})


def test_one_key_may_stand_in_the_settings(tmp_path: Path) -> None:
    config = load(None, {"NPROXY_AUTH__API_KEY": "sk-one"})
    assert config.auth is not None and config.auth.api_key is not None
    assert "sk-one" not in repr(config)
    with pytest.raises(ConfigError, match="contains characters that are not allowed in an HTTP header"):
        load(None, {"NPROXY_AUTH__API_KEY": "schlüssel"})
    assert isinstance(config, Config)

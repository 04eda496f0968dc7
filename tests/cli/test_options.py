"""Options of serve, over the environment, over the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from nproxy.cli.options import ServeOptions
from nproxy.config import Config, ConfigError, load
from nproxy.config.replicas import Replica

FILE = "upstreams: [{name: upstream, replicas: ['http://a'], n: {native_up_to: 4}}]\nlisten: {port: 1, host: h}\n"


def loaded(file: Path | None, environ: dict[str, str], **given: str | tuple[str, ...]) -> Config:
    texts = "model", "dtype", "quantization", "host", "port", "workers", "max_n", "n_mode", "api_key", "upstream_key"
    nothing = dict.fromkeys(texts)
    return load(file, environ, ServeOptions.of({**nothing, "upstreams": (), **given}).lay_over)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nproxy.yaml"
    path.write_text(FILE)
    return path


def test_nothing_means_the_default_model() -> None:
    assert loaded(None, {}) == Config()


def test_options_go_over_the_environment_and_that_over_the_file(file: Path) -> None:
    config = loaded(file, {"NPROXY_LISTEN__PORT": "2", "NPROXY_LISTEN__HOST": "e"}, port="3", workers="4")
    assert (config.listen.port, config.listen.host, config.listen.workers) == (3, "e", 4)


def test_upstreams_alone_run_no_engine() -> None:
    config = loaded(None, {}, upstreams=("http://a", "http://b"))
    assert config.engine is None
    assert [(upstream.name, upstream.replicas) for upstream in config.upstreams] == [
        ("upstream", (Replica(url="http://a/v1"),)),
        ("upstream-2", (Replica(url="http://b/v1"),)),
    ]


def test_a_model_beside_upstreams_runs_the_engine_too(file: Path) -> None:
    config = loaded(file, {}, model="org/name", dtype="float32", quantization="int8")
    assert config.engine is not None
    engine = config.engine
    assert (engine.model, engine.dtype, engine.quantization) == ("org/name", "float32", "int8")
    assert len(config.upstreams) == 1


def test_options_of_the_engine_alone_do_not_start_it_beside_upstreams(file: Path) -> None:
    why = "is for the built-in engine, which does not run beside upstreams without --model"
    for upstreams, written in ((("http://a",), None), ((), file)):
        with pytest.raises(ConfigError) as caught:
            loaded(written, {}, upstreams=upstreams, dtype="float32", quantization="int8")
        assert str(caught.value).splitlines() == [f"--dtype: {why}", f"--quantization: {why}"]
    with file.open("a") as more:
        more.write("engine: {}\n")
    assert (engine := loaded(file, {}, dtype="float32").engine) is not None
    assert engine.dtype == "float32"
    assert loaded(None, {}, dtype="float32").engine is not None


@pytest.mark.parametrize("typed", ["file:key", "file:../here/key", "file:{folder}/key"])
def test_a_file_that_an_option_names_starts_at_the_current_directory(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "key").write_text("typed\n")
    (tmp_path / "key").write_text("beside the settings\n")
    monkeypatch.chdir(here)
    auth = loaded(file, {}, api_key=typed.format(folder=here)).auth
    assert auth is not None
    assert auth.api_key is not None
    assert auth.api_key.get_secret_value() == "typed"


def test_a_file_in_the_home_folder_is_found_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("of home\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    auth = loaded(None, {}, api_key="file:~/key").auth
    assert auth is not None
    assert auth.api_key is not None
    assert auth.api_key.get_secret_value() == "of home"


def test_an_upstream_is_added_to_the_files_under_a_free_name(file: Path) -> None:
    config = loaded(file, {}, upstreams=("http://b",))
    assert [upstream.name for upstream in config.upstreams] == ["upstream", "upstream-2"]


def test_a_key_goes_to_the_servers_of_the_options_only(file: Path) -> None:
    environ = {"THEIRS": "sk-theirs"}
    config = loaded(file, environ, upstreams=("http://b", "http://c"), upstream_key="${THEIRS}", api_key="ours")
    first, *others = [upstream.api_key for upstream in config.upstreams]
    assert first == "none"
    assert [key.get_secret_value() for key in others if isinstance(key, SecretStr)] == ["sk-theirs"] * 2
    for wrong, why in (
        ({"upstream_key": "sk-1"}, "--upstream-key: is for the servers of --upstream, and there are none"),
        (
            {"upstream_key": "", "upstreams": ("http://b",)},
            "--upstream-key: upstreams[1].api_key: must be text: ${NAME}, file:PATH, or the secret itself",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            loaded(file, environ, **wrong)
        assert str(caught.value) == why


def test_n_goes_to_every_upstream(file: Path) -> None:
    config = loaded(file, {}, upstreams=("http://b",), n_mode="fanout", max_n="8")
    assert [upstream.n for upstream in config.upstreams] == ["fanout", "fanout"]
    assert config.n_policy.max_n == 8


def test_n_without_an_upstream_is_refused(file: Path) -> None:
    why = "--n: is for upstreams, and there are none"
    for given in ({}, {"model": "org/name"}):
        with pytest.raises(ConfigError) as caught:
            loaded(None, {}, n_mode="native", **given)
        assert str(caught.value) == why
    file.write_text("upstreams: {name: a, replicas: ['http://a']}\n")
    with pytest.raises(ConfigError, match="upstreams: must be a list"):
        loaded(file, {}, n_mode="native")


def test_an_error_names_the_option(file: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(file, {}, max_n="many", port="99999", upstreams=("ftp://b",))
    assert str(raised.value).splitlines() == [
        "--max-n: must be a whole number",
        "--port: must be less than or equal to 65535",
        "--upstream: upstreams[1].replicas[0]: must begin with http://, https:// or unix:/",
    ]


def test_a_key_is_read_as_keys_are(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-in-a-file\n")
    for given, key in (("${KEY}", "sk-of-the-shell"), (f"file:{tmp_path}/key", "sk-in-a-file"), ("sk-bare", "sk-bare")):
        auth = loaded(None, {"KEY": "sk-of-the-shell"}, api_key=given, upstreams=("http://a",)).auth
        assert auth is not None and auth.api_key is not None
        assert auth.api_key.get_secret_value() == key
    with pytest.raises(ConfigError, match=r"^--api-key: needs a path behind file:$"):
        loaded(None, {}, api_key="file:")
    with pytest.raises(ConfigError, match="--api-key: environment variable KEY is not set"):
        loaded(None, {}, api_key="${KEY}")


def test_beside_a_key_no_upstream_gets_the_clients(file: Path) -> None:
    config = loaded(file, {}, api_key="sk-bare", upstreams=("http://b",))
    assert [upstream.api_key for upstream in config.upstreams] == ["none", "none"]

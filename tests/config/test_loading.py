"""Readings of the settings: which files bear on them, what another process is told, what only a restart changes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from pydantic import SecretStr

from nproxy.config import ConfigError, Reading, Source, Tree, from_message, needs_restart, read_keys, summarise
from nproxy.config.loading import keys_from_message
from nproxy.config.tree import Origin
from nproxy.config.watching import digest

CANARY = "canary-41c9"
BASE = "upstreams:\n- name: a\n  replicas: [http://a]\n"


def read(folder: Path, text: str, environ: dict[str, str] | None = None) -> Reading:
    file = folder / "nproxy.yaml"
    file.write_text(text)
    return Source(file, environ or {}).read()


def test_every_file_that_bears_on_the_settings_is_told(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(CANARY)
    (tmp_path / "keys.yaml").write_text(f"keys: [{{name: a, hash: 'sha256:{'0' * 64}'}}]")
    reading = read(tmp_path, BASE + "  api_key: file:key\nauth: {api_keys_file: keys.yaml}")
    assert reading.checked()
    assert reading.files == {tmp_path / name: digest(tmp_path / name) for name in ("nproxy.yaml", "key", "keys.yaml")}


def test_a_file_that_is_missing_is_told_too(tmp_path: Path) -> None:
    """Once it is there, the settings may be good."""
    reading = read(tmp_path, BASE + "  api_key: file:key")
    assert reading.config is None
    assert reading.files[tmp_path / "key"] is None
    with pytest.raises(ConfigError, match="cannot read"):
        reading.checked()


def test_no_file_at_all() -> None:
    reading = Source(None, {"NPROXY_UPSTREAMS__0__NAME": "a", "NPROXY_UPSTREAMS__0__REPLICAS": "http://a"}).read()
    assert reading.checked().upstreams[0].name == "a"
    assert reading.files == {}


def test_options_and_environment_of_the_start_are_laid_over_each_reading(tmp_path: Path) -> None:
    def option(tree: Tree) -> None:
        tree.put(("listen", "port"), "9", Origin("--port", names_key=True))

    file = tmp_path / "nproxy.yaml"
    source = Source(file, {"NPROXY_N_POLICY__MAX_N": "7"}, option)
    for host in ("127.0.0.1", "127.0.0.2"):
        file.write_text(BASE + f"listen: {{host: {host}, port: 1}}\nn_policy: {{max_n: 3}}")
        config = source.read().checked()
        assert (config.listen.host, config.listen.port, config.n_policy.max_n) == (host, 9, 7)


def test_another_process_takes_what_was_read_and_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(CANARY)
    reading = read(
        tmp_path, BASE + "  api_key: file:key\nadmin: {token: '${TOKEN}'}\nlimits: {body_mib: 2}", {"TOKEN": "t"}
    )
    message = json.loads(json.dumps(reading.message()))
    (tmp_path / "key").write_text("another")
    there = from_message(message)
    assert there == reading.checked()
    key = there.upstreams[0].api_key
    assert isinstance(key, SecretStr)
    assert key.get_secret_value() == CANARY
    assert keys_from_message(message) == ()


def test_keys_go_to_another_process_as_they_were_read(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{name: a, hash: 'sha256:{'0' * 64}', models: [m], weight: 0.5, expires: 2027-01-31}}]")
    reading = read(tmp_path, BASE + "auth: {api_keys_file: keys.yaml}")
    keys = read_keys(file)
    assert reading.keys == keys
    message = json.loads(json.dumps(reading.message()))
    file.unlink()
    assert keys_from_message(message) == keys
    assert "sha256" not in repr(reading)


def test_a_summary_names_the_keys_that_were_read(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{name: ann, hash: 'sha256:{'0' * 64}'}}]")
    reading = read(tmp_path, BASE + "auth: {api_keys_file: keys.yaml}")
    file.write_text("half wri")
    assert "1 key: ann" in summarise(reading.checked(), reading.keys)


def test_a_summary_says_until_when_the_certificate_is_valid(tmp_path: Path) -> None:
    certificate = trustme.CA().issue_cert("127.0.0.1", not_after=datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC))
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "pair.pem")
    reading = read(tmp_path, BASE + "listen: {tls: {certificate: pair.pem, key: pair.pem}}")
    summary = summarise(reading.checked(), reading.keys, reading.pair)
    assert "https://127.0.0.1:8000, 1 worker, with a certificate until 2031-02-03 04:05 UTC\n" in summary


def test_a_secret_is_in_no_repr_of_a_reading(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(CANARY)
    for written in ("file:key", CANARY):
        assert CANARY not in repr(read(tmp_path, BASE + f"  api_key: {written}"))


RESTART = {
    "a port": (BASE + "listen:\n  port: 1", BASE + "listen:\n  port: 2", ["5: listen.port"]),
    "a host left out": (BASE + "listen:\n  host: '::1'", BASE, ["1: listen.host"]),
    "workers": (BASE, BASE + "listen: {workers: 2}", ["4: listen.workers"]),
    "an engine comes": (BASE, BASE + "engine: {}", ["4: engine"]),
    "an engine's settings": (
        "engine: {model: a}",
        "engine:\n  model: b\n  seed: 7",
        ["2: engine.model", "3: engine.seed"],
    ),
    "an admin port comes": (BASE, BASE + "admin: {port: 1}", ["4: admin"]),
    "an admin port moves": (BASE + "admin: {port: 1}", BASE + "admin:\n  port: 2", ["5: admin.port"]),
    "a collector": (BASE, BASE + "telemetry:\n  otlp_endpoint: http://c", ["5: telemetry.otlp_endpoint"]),
    "a collector's headers": (
        BASE + "telemetry: {otlp_endpoint: 'http://c', otlp_headers: {a: b}}",
        BASE + "telemetry:\n  otlp_endpoint: http://c\n  otlp_headers: {a: c}",
        ["6: telemetry.otlp_headers"],
    ),
    "nothing": (BASE, BASE, []),
    "what may change": (
        BASE + "admin: {token: a}",
        "upstreams:\n- {name: b, replicas: [http://b], n: native}\nlimits: {body_mib: 3}\nadmin: {token: b}\n"
        "listen: {drain_seconds: 1, cors_origins: ['*'], trusted_proxies: [127.0.0.1]}\nstream: {ping_seconds: 3}\n"
        "telemetry: {trace_ratio: 0.5, log_content: true}",
        [],
    ),
}


@pytest.mark.parametrize(("served", "wanted", "told"), RESTART.values(), ids=RESTART)
def test_what_needs_a_restart_is_told_with_its_line(tmp_path: Path, served: str, wanted: str, told: list[str]) -> None:
    before, after = read(tmp_path, served), read(tmp_path, wanted)
    problems = needs_restart(before.checked(), after.checked(), after.tree)
    assert [str(problem) for problem in problems] == [
        f"{tmp_path}/nproxy.yaml:{place}: cannot change without a restart" for place in told
    ]


@pytest.mark.parametrize(
    ("api_keys", "noted"),
    [
        (("passthrough", "passthrough"), True),
        (("passthrough", "none"), False),
        (("none", "passthrough"), False),
        (("own", "passthrough"), False),
    ],
)
def test_a_key_that_several_are_shown_is_noted(api_keys: tuple[str, str], noted: bool, tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text(
        "upstreams:\n"
        f"  - {{name: main, replicas: ['http://a/v1'], models: [m], api_key: {api_keys[0]}, fallback: [cloud]}}\n"
        f"  - {{name: cloud, replicas: ['http://b/v1'], models: [m], api_key: {api_keys[1]}}}\n"
    )
    told = summarise(Source(file, {}).read().checked(), ())
    assert ("a client's key for main is also sent to cloud" in told) is noted

"""NPROXY_... variables over a file, and errors that name the variable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nproxy.config import Config, ConfigError, NativeUpTo, load
from nproxy.config.environment import MAPS
from nproxy.config.replicas import Replica


def problems(environ: dict[str, str], file: Path | None = None) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load(file, environ)
    return [str(problem) for problem in raised.value.problems]


def test_a_variable_goes_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text("listen: {port: 1, host: '::1'}\n")
    config = load(file, {"NPROXY_LISTEN__PORT": "2", "NPROXY_TELEMETRY__METRICS": "false"})
    assert (config.listen.port, config.listen.host, config.telemetry.metrics) == (2, "::1", False)


def test_every_kind_of_value_can_be_set() -> None:
    config = load(
        None,
        {
            "NPROXY_UPSTREAMS__0__NAME": "a",
            "NPROXY_UPSTREAMS__0__REPLICAS__0": "http://a",
            "NPROXY_UPSTREAMS__0__REPLICAS__1": "http://b",
            "NPROXY_UPSTREAMS__0__API_KEY": "0123",
            "NPROXY_UPSTREAMS__0__N__NATIVE_UP_TO": "4",
            "NPROXY_UPSTREAMS__0__PARALLEL": "3",
            "NPROXY_UPSTREAMS__0__TIMEOUTS__IDLE": "null",
            "NPROXY_UPSTREAMS__0__MODELS": "[m1, m2]",
            "NPROXY_UPSTREAMS__1": "{name: b, replicas: ['http://c']}",
            "NPROXY_STREAM__PING_SECONDS": "0.5",
        },
    )
    first, second = config.upstreams
    assert first.replicas == (Replica(url="http://a/v1"), Replica(url="http://b/v1"))
    assert not isinstance(first.api_key, str)
    assert first.api_key.get_secret_value() == "0123"
    assert (first.n, first.parallel, first.timeouts.idle) == (NativeUpTo(native_up_to=4), 3, None)
    assert first.models == {"m1": "m1", "m2": "m2"}
    assert second.name == "b"
    assert config.stream.ping_seconds == 0.5
    assert config.engine is None


@pytest.mark.parametrize("null", ["null", "~", ""])
def test_ways_to_write_null(null: str) -> None:
    assert load(None, {"NPROXY_STREAM__PING_SECONDS": null}).stream.ping_seconds is None


def test_what_a_variable_replaces_is_no_longer_the_files(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text("listen: {port: 1}\n")
    (problem,) = problems({"NPROXY_LISTEN": "{port: -1}"}, file)
    assert problem.startswith("NPROXY_LISTEN: listen.port: ")


def test_what_an_entry_lacks_is_told_with_a_variable_that_made_it() -> None:
    (problem,) = problems({"NPROXY_UPSTREAMS__0__NAME": "a"})
    assert problem == "NPROXY_UPSTREAMS__0__NAME: upstreams[0].replicas: is required"


def test_the_users_own_words_keep_their_case() -> None:
    config = load(
        None,
        {
            "NPROXY_UPSTREAMS__0": "{name: a, replicas: ['http://a']}",
            "NPROXY_UPSTREAMS__0__MODELS__GPT-4": "Own",
            "NPROXY_ENGINE__ADAPTERS__MyLora": "/x",
        },
    )
    assert config.upstreams[0].models == {"GPT-4": "Own"}
    assert config.engine is not None and config.engine.adapters == {"MyLora": "/x"}


def test_every_map_is_known() -> None:
    """A setting that is a map, by the schema: an object whose keys are free."""

    def maps(node: Any, name: str) -> Iterator[str]:
        if isinstance(node, dict):
            if name and isinstance(node.get("additionalProperties"), dict):
                yield name
            for key, inside in node.items():
                if key in ("properties", "$defs"):
                    for inner, schema in inside.items():
                        yield from maps(schema, inner if key == "properties" else "")
                else:
                    yield from maps(inside, name)
        elif isinstance(node, list):
            for inside in node:
                yield from maps(inside, name)

    assert set(maps(Config.model_json_schema(), "")) == MAPS


def test_entries_are_laid_in_the_order_of_their_numbers() -> None:
    names = {f"NPROXY_UPSTREAMS__{number}": f"{{name: u{number}, replicas: ['http://a']}}" for number in range(12)}
    assert [upstream.name for upstream in load(None, names).upstreams] == [f"u{number}" for number in range(12)]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NPROXY_LISTEN__PORT", "x", "NPROXY_LISTEN__PORT: listen.port: must be a whole number"),
        ("NPROXY_LISTEN__PROT", "1", "NPROXY_LISTEN__PROT: listen.prot: unknown key; did you mean port?"),
        ("NPROXY_LISTN__PORT", "1", "NPROXY_LISTN__PORT: unknown setting; did you mean listen?"),
        (
            "NPROXY_LISTEN_PORT",
            "8001",
            "NPROXY_LISTEN_PORT: unknown setting; levels are separated by two underscores: "
            "did you mean NPROXY_LISTEN__PORT?",
        ),
        (
            "NPROXY_PORT",
            "8123",
            "NPROXY_PORT: unknown setting; levels are separated by two underscores: did you mean NPROXY_LISTEN__PORT?",
        ),
        (
            "NPROXY_UPSTREAMS_1_TIMEOUTS_FIRST_EVENT",
            "9",
            "NPROXY_UPSTREAMS_1_TIMEOUTS_FIRST_EVENT: unknown setting; levels are separated by two underscores: "
            "did you mean NPROXY_UPSTREAMS__1__TIMEOUTS__FIRST_EVENT?",
        ),
        (
            "NPROXY_COLOUR",
            "red",
            "NPROXY_COLOUR: unknown setting; levels are separated by two underscores, as in NPROXY_LISTEN__PORT",
        ),
        ("NPROXY_PORT_8000_TCP", "8000", "NPROXY_PORT_8000_TCP: unknown setting"),
        ("NPROXY_SERVICE_PORT", "tcp", "NPROXY_SERVICE_PORT: unknown setting"),
        ("NPROXY_LISTEN", "8000", "NPROXY_LISTEN: listen: must be a mapping"),
        (
            "NPROXY_ENGINE__QUANTIZATION",
            "k",
            "NPROXY_ENGINE__QUANTIZATION: engine.quantization: must be int8",
        ),
        (
            "NPROXY_UPSTREAMS__3__NAME",
            "a",
            "NPROXY_UPSTREAMS__3__NAME: upstreams[3]: entry 3 does not exist: the list has 0 entries",
        ),
        ("NPROXY_AUTH", "", "NPROXY_AUTH: auth: is empty; null switches the section off"),
        ("NPROXY_LISTEN__TLS", "", "NPROXY_LISTEN__TLS: listen.tls: is empty; null switches the section off"),
        ("NPROXY_AUTH__API_KEY", "", "NPROXY_AUTH__API_KEY: auth.api_key: is empty; null means that there is none"),
        ("NPROXY_ADMIN__TOKEN", "", "NPROXY_ADMIN__TOKEN: admin.token: is empty; null means that there is none"),
        ("NPROXY_LISTEN", "", "NPROXY_LISTEN: listen: must be a mapping"),
        ("NPROXY_UPSTREAMS", "[{", "NPROXY_UPSTREAMS: not valid YAML: "),
    ],
)
def test_an_error_names_the_variable(name: str, value: str, expected: str) -> None:
    (problem,) = problems({name: value})
    assert problem.startswith(expected)


def test_only_null_switches_a_section_off(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text("auth: {api_key: sk-key}\nengine: {seed: 3}\n")
    assert problems({"NPROXY_AUTH": ""}, file) == ["NPROXY_AUTH: auth: is empty; null switches the section off"]
    config = load(file, {"NPROXY_AUTH": "null", "NPROXY_ENGINE__SEED": ""})
    assert (config.auth, config.engine) == (None, Config().engine)


def test_a_name_in_a_list_is_the_variables_fault(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text("upstreams:\n  - {name: a, replicas: [http://h/v1]}\n")
    [problem] = problems({"NPROXY_UPSTREAMS__X__N": "fanout"}, file)
    assert problem == "NPROXY_UPSTREAMS__X__N: upstreams.x: this is a list: its entries are numbered from 0"
    [problem] = problems({"NPROXY_UPSTREAMS__\u00b2__N": "fanout"}, file)
    assert problem.endswith("this is a list: its entries are numbered from 0")


def test_variables_that_kubernetes_sets_for_a_service_are_no_settings() -> None:
    service = {
        "NPROXY_SERVICE_HOST": "10.0.0.1",
        "NPROXY_SERVICE_PORT": "8000",
        "NPROXY_SERVICE_PORT_HTTP": "8000",
        "NPROXY_PORT": "tcp://10.0.0.1:8000",
        "NPROXY_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "NPROXY_PORT_8000_TCP_PROTO": "tcp",
        "NPROXY_PORT_8000_TCP_PORT": "8000",
        "NPROXY_PORT_8000_TCP_ADDR": "10.0.0.1",
        "NPROXY_CANARY_SERVICE_HOST": "10.0.0.2",
        "NPROXY_CANARY_PORT": "udp://10.0.0.2:53",
    }
    assert load(None, {**service, "NPROXY_CACHE": "/c"}) == Config()

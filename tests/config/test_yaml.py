"""Settings files: each error at its line, and what good files become."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from nproxy.config import Config, ConfigError, NativeUpTo, Replica, load, settings


def write(folder: Path, text: str) -> Path:
    file = folder / "nproxy.yaml"
    file.write_text(textwrap.dedent(text))
    return file


def problems(file: Path, environ: dict[str, str] | None = None) -> list[str]:
    """What loading a bad file says, without the folder's name."""
    with pytest.raises(ConfigError) as raised:
        load(file, environ or {})
    return [str(problem).removeprefix(f"{file.parent}/") for problem in raised.value.problems]


BAD = {
    "unknown key": ("listen:\n  prot: 1", "nproxy.yaml:2: listen.prot: unknown key; did you mean port?"),
    "unknown section": ("listenn: {}", "nproxy.yaml:1: listenn: unknown key; did you mean listen?"),
    "unknown key nested": (
        "upstreams:\n- name: a\n  replicas: [http://a]\n  timeouts:\n    conect: 1",
        "nproxy.yaml:5: upstreams[0].timeouts.conect: unknown key; did you mean connect?",
    ),
    "a key that belongs into a section": (
        "max_n: 5",
        "nproxy.yaml:1: max_n: unknown key; it belongs at n_policy.max_n",
    ),
    "a key that belongs into an upstream": (
        "timeouts: {idle: 5, total: 9}",
        "nproxy.yaml:1: timeouts: unknown key; did you mean upstreams[].timeouts?",
    ),
    "a key that belongs into one part of an upstream": (
        "upstreams:\n- name: a\n  replicas: [http://a]\n  first_event: 1",
        "nproxy.yaml:4: upstreams[0].first_event: unknown key; it belongs at upstreams[].timeouts.first_event",
    ),
    "a section under another name": (
        "n: {max_n: 5}",
        "nproxy.yaml:1: n: unknown key; did you mean n_policy?",
    ),
    "a section of an upstream, and a similar key here": (
        "health: {interval: 5}",
        "nproxy.yaml:1: health: unknown key; did you mean upstreams[].health?",
    ),
    "an empty section of an upstream, and a similar key here": (
        "health:",
        "nproxy.yaml:1: health: unknown key; it belongs at upstreams[].health",
    ),
    "a key of another section, and a similar key here": (
        "listen: {ping_seconds: 5}",
        "nproxy.yaml:1: listen.ping_seconds: unknown key; it belongs at stream.ping_seconds",
    ),
    "a key of another section, and its plural here": (
        "upstreams:\n- {name: a, replicas: [http://a], model: m}",
        "nproxy.yaml:2: upstreams[0].model: unknown key; did you mean models?",
    ),
    "a key of another section, and a longer name here": (
        "auth: {key: k}",
        "nproxy.yaml:1: auth.key: unknown key; did you mean api_key?",
    ),
    "a key of the file within an upstream": (
        "upstreams:\n- name: a\n  replicas: [http://a]\n  n_policy: {max_n: 5}",
        "nproxy.yaml:4: upstreams[0].n_policy: unknown key; did you mean n_policy at the top level?",
    ),
    "a key of the file within a section": (
        "listen: {upstreams: []}",
        "nproxy.yaml:1: listen.upstreams: unknown key; it belongs at the top level",
    ),
    "a key of a parsed replica, which no file has": (
        "upstreams:\n- {name: a, replicas: [http://a], socket: /run/e.sock}",
        "nproxy.yaml:2: upstreams[0].socket: unknown key",
    ),
    "a key that is nowhere": ("zzz: {yyy: 5}", "nproxy.yaml:1: zzz: unknown key"),
    "not a number": ("listen:\n  port: eighty", "nproxy.yaml:2: listen.port: must be a whole number"),
    "boolean for a number": ("listen: {port: true}", "nproxy.yaml:1: listen.port: must be a number, not true or false"),
    "port too high": ("listen: {port: 65536}", "nproxy.yaml:1: listen.port: must be less than or equal to 65535"),
    "a host full of workers": (
        "listen: {workers: 257}",
        "nproxy.yaml:1: listen.workers: must be less than or equal to 256",
    ),
    "number for a text": ("listen: {host: 7}", "nproxy.yaml:1: listen.host: must be text"),
    **{
        f"host {host}": (
            f"listen: {{host: '{host}'}}",
            "nproxy.yaml:1: listen.host: must be an IP address or a host name, without a port",
        )
        for host in ("a b", "127.0.0.1:80", "http://a", "[::1]", "a/b", "-a", "a..b", "x" * 64)
    },
    "scalar for a section": ("\nlisten: 8000", "nproxy.yaml:2: listen: must be a mapping"),
    "list at the top": ("- a", "nproxy.yaml:1: must be a mapping of sections such as listen and upstreams"),
    "mapping for a list": ("upstreams: {name: a}", "nproxy.yaml:1: upstreams: must be a list"),
    "required key": (
        "upstreams:\n  - replicas: [http://a]",
        "nproxy.yaml:2: upstreams[0].name: is required",
    ),
    "key twice": (
        "listen:\n  port: 1\n  host: a\n  port: 2",
        "nproxy.yaml:4: listen.port: occurs twice; first on line 2",
    ),
    "name twice": (
        "upstreams:\n- {name: a, replicas: [http://a]}\n- {name: a, replicas: [http://b]}",
        "nproxy.yaml:3: upstreams[1].name: is taken by another upstream",
    ),
    "the engine's name": (
        "engine: {}\nupstreams:\n- {name: engine, replicas: [http://a]}",
        "nproxy.yaml:3: upstreams[0].name: is the name of the built-in engine",
    ),
    "the engine's name without an engine": (
        "upstreams:\n- {name: engine, replicas: [http://a]}",
        "nproxy.yaml:2: upstreams[0].name: is the name of the built-in engine",
    ),
    "fallback to nowhere": (
        "upstreams:\n- {name: a, replicas: [http://a]}\n- {name: b, replicas: [http://b], fallback: [c]}",
        "nproxy.yaml:3: upstreams[1].fallback[0]: is not the name of another upstream; there are: a",
    ),
    "a proxy that is no address": (
        "listen: {trusted_proxies: [proxy.example]}",
        "nproxy.yaml:1: listen.trusted_proxies[0]: must be an IP address or a network such as 10.0.0.0/8",
    ),
    "passthrough to nowhere": (
        "upstreams:\n- {name: a, replicas: [http://a]}\npassthrough:\n  upstream: b",
        "nproxy.yaml:4: passthrough.upstream: is not the name of an upstream; there are: a",
    ),
    "nothing to serve": ("engine: null", "nproxy.yaml:1: needs an engine or at least one upstream"),
    "limits below max_n": (
        "n_policy: {max_n: 128}\nlimits: {inflight_choices: 64}",
        "nproxy.yaml:2: limits.inflight_choices: must be at least n_policy.max_n",
    ),
    "a host that cannot be": (
        "upstreams:\n- {name: a, replicas: ['http://a..b/v1']}",
        "nproxy.yaml:2: upstreams[0].replicas[0]: is not a valid URL",
    ),
    "a host that is too long": (
        "upstreams:\n- {name: a, replicas: ['http://" + "a" * 64 + ".b']}",
        "nproxy.yaml:2: upstreams[0].replicas[0]: is not a valid URL",
    ),
    "port 0 of a replica": (
        "upstreams:\n- {name: a, replicas: ['http://a:0/v1']}",
        "nproxy.yaml:2: upstreams[0].replicas[0]: is not a valid URL",
    ),
    "no replicas": ("upstreams:\n- {name: a, replicas: []}", "nproxy.yaml:2: upstreams[0].replicas: must not be empty"),
    "scheme": (
        "upstreams:\n- {name: a, replicas: ['ftp://a']}",
        "nproxy.yaml:2: upstreams[0].replicas[0]: must begin with http://, https:// or unix:/",
    ),
    "NUL in a socket's path": (
        'upstreams:\n- {name: a, replicas: ["unix:/a\\0b"]}',
        "nproxy.yaml:2: upstreams[0].replicas[0]: must not contain a NUL character",
    ),
    "credentials in a URL": (
        "upstreams:\n- {name: a, replicas: ['http://u:pw@a/v1']}",
        "nproxy.yaml:2: upstreams[0].replicas[0]: must not contain credentials; use api_key",
    ),
    "a key beside url": (
        "upstreams:\n- {name: a, replicas: [{url: 'http://a', wieght: 2}]}",
        "nproxy.yaml:2: upstreams[0].replicas[0]: unknown key next to url: wieght",
    ),
    "a path of looks": (
        "upstreams:\n- {name: a, replicas: ['http://a'], health: {path: health}}",
        "nproxy.yaml:2: upstreams[0].health.path: must begin with /, and be ASCII without spaces and #",
    ),
    "a path that ends the line of a request": (
        "upstreams:\n- {name: a, replicas: ['http://a'], health: {path: \"/a\\r\\nx: y\"}}",
        "nproxy.yaml:2: upstreams[0].health.path: must begin with /, and be ASCII without spaces and #",
    ),
    "a path of a name": (
        "upstreams:\n- {name: a, replicas: [{dns: 'a:1', path: v1}]}",
        "nproxy.yaml:2: upstreams[0].replicas[0].path: must begin with /, and be ASCII without spaces and #",
    ),
    "a variable in a URL": (
        "upstreams:\n- {name: a, replicas: ['http://${HOST}:8000/v1']}",
        "nproxy.yaml:2: upstreams[0].replicas[0]: must not contain variables: these are for secrets",
    ),
    "a host with a dash first": (
        "upstreams:\n- {name: a, replicas: ['http://-x/v1']}",
        "nproxy.yaml:2: upstreams[0].replicas[0]: is not a valid URL",
    ),
    "a key with its scheme": (
        "upstreams:\n- {name: a, replicas: ['http://a'], api_key: Bearer sk-a}",
        "nproxy.yaml:2: upstreams[0].api_key: must be the key alone, without Bearer before it",
    ),
    "a token with its scheme": (
        "upstreams:\n- {name: a, replicas: ['http://a']}\nadmin: {token: bearer a}",
        "nproxy.yaml:3: admin.token: must be the key alone, without Bearer before it",
    ),
    "a variable without braces": (
        "upstreams:\n- {name: a, replicas: ['http://a'], api_key: $KEY}",
        "nproxy.yaml:2: upstreams[0].api_key: a variable is written with braces: ${NAME}",
    ),
    "a word in capitals": (
        "upstreams:\n- {name: a, replicas: ['http://a'], api_key: Passthrough}",
        "nproxy.yaml:2: upstreams[0].api_key: must be written passthrough",
    ),
    "a word with spaces": (
        "upstreams:\n- {name: a, replicas: ['http://a'], api_key: ' none '}",
        "nproxy.yaml:2: upstreams[0].api_key: must be written none",
    ),
    "a template that was not filled in": (
        "listen:\n  port: {{ .Values.port }}",
        "nproxy.yaml:2: listen.port: a key must be plain text",
    ),
    "dns without a port": (
        "upstreams:\n- {name: a, replicas: [{dns: a}]}",
        "nproxy.yaml:2: upstreams[0].replicas[0]: dns needs a name and a port, as in {dns: vllm.default.svc:8000}",
    ),
    "n mode": (
        "upstreams:\n- name: a\n  replicas: [http://a]\n  n: sometimes",
        "nproxy.yaml:4: upstreams[0].n: must be auto, native, fanout or {native_up_to: 4}",
    ),
    "a base URL with the path of a call": (
        "upstreams:\n- name: a\n  replicas: [http://a/v1/chat/completions/]",
        "nproxy.yaml:3: upstreams[0].replicas[0]: must be the base URL, without /chat/completions",
    ),
    "n width": (
        "upstreams:\n- name: a\n  replicas: [http://a]\n  n:\n    native_up_to: 0",
        "nproxy.yaml:5: upstreams[0].n.native_up_to: must be greater than or equal to 1",
    ),
    "parallel": (
        "upstreams:\n- name: a\n  replicas: [http://a]\n  parallel: 0",
        "nproxy.yaml:4: upstreams[0].parallel: must be auto or a number of at least 1",
    ),
    "parallel in words": (
        "upstreams:\n- name: a\n  replicas: [http://a]\n  parallel: many",
        "nproxy.yaml:4: upstreams[0].parallel: must be auto or a number of at least 1",
    ),
    "one model that is not in a list": (
        "upstreams:\n- name: a\n  replicas: [http://a]\n  models: b",
        "nproxy.yaml:4: upstreams[0].models: must be auto, a list of model ids, or a map of each alias",
    ),
    "paths without a slash": (
        "passthrough: {paths: [v1/embeddings]}",
        "nproxy.yaml:1: passthrough.paths: must be default, all, or a list of paths that begin with /",
    ),
    "models": (
        "upstreams:\n- name: a\n  replicas: [http://a]\n  models: [b, b]",
        "nproxy.yaml:4: upstreams[0].models: contains a model twice",
    ),
    "infinite seconds": (
        "limits: {write_seconds: 1e999}",
        "nproxy.yaml:1: limits.write_seconds: must be a finite number",
    ),
    "not YAML": ("listen: {port: 1", "nproxy.yaml:1: not valid YAML: expected ',' or '}', but got '<stream end>'"),
    "a variable without quotes": (
        "upstreams:\n- {name: a, replicas: [http://a], api_key: ${KEY}}",
        "nproxy.yaml:2: not valid YAML: expected ',' or '}', but got '{'; "
        'inside braces or brackets, write "${NAME}" with its quotes',
    ),
    "an IPv6 address without quotes": (
        "upstreams:\n- name: ä\n  replicas: [http://a, http://[::1]:8000/v1]",
        "nproxy.yaml:3: not valid YAML: expected ',' or ']', but got '['; "
        'inside braces or brackets, write "http://[::1]:8000/v1" with its quotes',
    ),
    "an IPv6 address without quotes in a mapping": (
        "upstreams:\n- {name: a, replicas: http://[::1]:8000/v1}",
        "nproxy.yaml:2: not valid YAML: expected ',' or '}', but got '['; "
        'inside braces or brackets, write "http://[::1]:8000/v1" with its quotes',
    ),
    "two documents": ("listen: {}\n---\nlisten: {}", "nproxy.yaml:2: not valid YAML: but found another document"),
    "a tag": ("listen: {host: !!python/name:os.system x}", "nproxy.yaml:1: listen.host: the tag"),
    "an alias inside itself": ("listen: &a [*a]", "nproxy.yaml:1: nested too deeply"),
}


def test_aliases_that_multiply_are_refused_where_they_become_too_many(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 12)]
    assert problems(write(tmp_path, "\n".join(lines))) == [
        "nproxy.yaml:5: expands to more than 100000 values (aliases included)"
    ]


def test_an_alias_stands_for_what_it_names(tmp_path: Path) -> None:
    text = """\
        upstreams:
        - {name: a, replicas: ['http://a'], timeouts: &slow {idle: 300}}
        - {name: b, replicas: ['http://b'], timeouts: *slow}
        """
    config = load(write(tmp_path, text), {})
    assert [upstream.timeouts.idle for upstream in config.upstreams] == [300, 300]


@pytest.mark.parametrize(("text", "expected"), BAD.values(), ids=BAD.keys())
def test_an_error_names_line_key_and_reason(tmp_path: Path, text: str, expected: str) -> None:
    (problem,) = problems(write(tmp_path, text))
    assert problem.startswith(expected)
    assert ("unknown key" not in expected) or problem == expected


def test_traces_without_what_sends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "telemetry:\n  otlp_endpoint: http://127.0.0.1:4318")
    assert load(file, {}).telemetry.otlp_endpoint == "http://127.0.0.1:4318"
    monkeypatch.setattr(settings, "EXPORTER", "opentelemetry_of_nobody.exporter")
    assert problems(file) == [
        "nproxy.yaml:2: telemetry.otlp_endpoint: needs OpenTelemetry: pip install '.[otlp]' in nproxy's folder"
    ]


def test_a_collector_and_its_headers(tmp_path: Path) -> None:
    text = "telemetry: {otlp_endpoint: 'https://c/otlp/', otlp_headers: {x-key: '${KEY}'}, trace_ratio: 0.1}"
    telemetry = load(write(tmp_path, text), {"KEY": "canary"}).telemetry
    assert (telemetry.otlp_endpoint, telemetry.trace_ratio) == ("https://c/otlp", 0.1)
    assert telemetry.otlp_headers is not None and telemetry.otlp_headers["x-key"].get_secret_value() == "canary"
    assert "canary" not in repr(telemetry)


NO_COLLECTORS = ("c:4318", "ftp://c", "http://", "http://a@c", "http://c?x", "http://c#x", "http://c:0", "http://c d")


@pytest.mark.parametrize("url", NO_COLLECTORS)
def test_no_collector(tmp_path: Path, url: str) -> None:
    (problem,) = problems(write(tmp_path, f"telemetry: {{otlp_endpoint: '{url}'}}"))
    assert problem.startswith("nproxy.yaml:1: telemetry.otlp_endpoint: must be a URL such as")


def test_headers_for_no_collector(tmp_path: Path) -> None:
    (problem,) = problems(write(tmp_path, "telemetry: {otlp_headers: {a: b}}"))
    assert problem == "nproxy.yaml:1: telemetry.otlp_headers: has no effect without otlp_endpoint"
    (problem,) = problems(write(tmp_path, "telemetry: {otlp_endpoint: 'http://c', otlp_headers: {'a b': c}}"))
    assert problem.endswith("must be a header name")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "fe80::1%eth0", "localhost", "a_b.example.", "bücher.example"])
def test_hosts(tmp_path: Path, host: str) -> None:
    assert load(write(tmp_path, f"listen: {{host: '{host}'}}"), {}).listen.host == host


def test_all_errors_are_told_in_the_order_of_lines(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """\
        upstreams:
          - name: a b
            replicas: [nowhere]
        listen:
          port: -1
        auth: {}
        # many
        # lines
        # later
        stream:
          ping_seconds: 0
        """,
    )
    lines = [problem.split(": ")[0] for problem in problems(file)]
    assert lines == [f"nproxy.yaml:{line}" for line in (2, 3, 5, 6, 11)]


def test_max_n_may_be_all_that_may_be_in_flight(tmp_path: Path) -> None:
    config = load(write(tmp_path, "n_policy: {max_n: 64}\nlimits: {inflight_choices: 64}"), {})
    assert config.n_policy.max_n == config.limits.inflight_choices == 64


def test_a_missing_file_is_one_error(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == ["none.yaml: cannot be read: no such file or directory"]


def test_a_file_that_is_not_utf8_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_bytes(b"listen:\n  host: \xff\n")
    assert problems(file) == ["nproxy.yaml:2: is not valid UTF-8"]


def test_an_empty_file_means_the_engine_with_the_default_model(tmp_path: Path) -> None:
    config = load(write(tmp_path, "# nothing\n"), {})
    assert config == Config()
    assert config.engine is not None
    assert config.engine.model == "smollm2-135m-instruct"


def test_upstreams_alone_start_no_engine(tmp_path: Path) -> None:
    config = load(write(tmp_path, "upstreams: [{name: a, replicas: ['http://127.0.0.1:1/']}]"), {})
    assert config.engine is None
    assert config.upstreams[0].replicas == (Replica(url="http://127.0.0.1:1/v1"),)


def test_values_are_parsed_into_their_one_form(tmp_path: Path) -> None:
    text = """\
        listen: {drain_seconds: 5}
        upstreams:
          - name: a
            replicas: ['https://h/api/', 'unix:/run/e.sock']
            models: [x, y]
            n: {native_up_to: 4}
            parallel: 2
            wire: exact
            timeouts: {first_event: null, connect: 0.5}
          - name: b
            replicas: ['http://b']
            models: {alias: real}
            n: native
        passthrough: {paths: [/v1/embeddings], upstream: b}
        """
    config = load(write(tmp_path, text), {})
    first, second = config.upstreams
    assert first.replicas == (
        Replica(url="https://h/api"),
        Replica(url="http://localhost/v1", socket=Path("/run/e.sock")),
    )
    assert first.models == {"x": "x", "y": "y"}
    assert first.n == NativeUpTo(native_up_to=4)
    assert (first.parallel, first.wire) == (2, "exact")
    assert (first.timeouts.first_event, first.timeouts.connect, first.timeouts.idle) == (None, 0.5, 60)
    assert (second.models, second.n, second.api_key) == ({"alias": "real"}, "native", "passthrough")
    assert config.passthrough.paths == ("/v1/embeddings",)


def test_plain_scalars_follow_yaml_1_2(tmp_path: Path) -> None:
    """In YAML 1.1 `off` would be false, `1:30` ninety and `010` eight."""
    text = "upstreams: [{name: off, replicas: ['http://a'], models: [no, 1:30]}]\nlisten: {port: 010}"
    config = load(write(tmp_path, text), {})
    assert config.upstreams[0].name == "off"
    assert config.upstreams[0].models == {"no": "no", "1:30": "1:30"}
    assert config.listen.port == 10


REPLICAS = {
    "a URL": ("http://a:1/v1", ["http://a:1/v1"], [1]),
    "capitals": (
        "[HTTP://A.Example:1/V1, 'http://[FD00::A]']",
        ["http://a.example:1/V1", "http://[fd00::a]/v1"],
        [1, 1],
    ),
    "the scheme's own port": (
        "['http://a:80', 'https://a:443/v1/', 'https://a:80', 'http://a:443', 'http://[::]:80']",
        ["http://a/v1", "https://a/v1", "https://a:80/v1", "http://a:443/v1", "http://[::]/v1"],
        [1, 1, 1, 1, 1],
    ),
    "an address written out": ("['http://[fd00:0:0::000A]:8000/']", ["http://[fd00::a]:8000/v1"], [1]),
    "a dot at the end": (
        "['http://a.b.:8000', 'https://c./v1./x.', dns:d.:1]",
        ["http://a.b:8000/v1", "https://c/v1./x.", "dns:d:1"],
        [1, 1, 1],
    ),
    "a list": ("[http://a:1, unix:/s]", ["http://a:1/v1", "unix:/s"], [1, 1]),
    "weights": ("[{url: http://a:1, weight: 2}, http://b:1]", ["http://a:1/v1", "http://b:1/v1"], [2, 1]),
    "a name": ("{dns: vllm.svc:8000}", ["dns:vllm.svc:8000"], [1]),
    "a name of weight": ("[{dns: vllm.svc:8000, weight: 0.5, path: /api}]", ["dns:vllm.svc:8000"], [0.5]),
}


@pytest.mark.parametrize(("text", "shown", "weights"), REPLICAS.values(), ids=REPLICAS)
def test_forms_of_replicas(tmp_path: Path, text: str, shown: list[str], weights: list[float]) -> None:
    (upstream,) = load(write(tmp_path, f"upstreams: [{{name: a, replicas: {text}}}]"), {}).upstreams
    assert [str(replica) for replica in upstream.replicas] == shown
    assert [replica.weight for replica in upstream.replicas] == weights


AGREEMENTS = {
    "a server twice": (
        "upstreams: [{name: a, replicas: ['http://a/v1', 'http://b', {url: 'http://A', weight: 3}]}]",
        "upstreams[0].replicas[2]: occurs twice; to send a replica more calls, set its weight",
    ),
    "a server twice, by its port": (
        "upstreams: [{name: a, replicas: ['http://a', 'HTTP://A:80/v1/']}]",
        "upstreams[0].replicas[1]: occurs twice; to send a replica more calls, set its weight",
    ),
    "a server twice, by a dot": (
        "upstreams: [{name: a, replicas: ['http://a:1', 'http://a.:1/v1']}]",
        "upstreams[0].replicas[1]: occurs twice; to send a replica more calls, set its weight",
    ),
    "a name twice": (
        "upstreams: [{name: a, replicas: ['dns:a:1', 'dns:A.:1']}]",
        "upstreams[0].replicas[1]: occurs twice; to send a replica more calls, set its weight",
    ),
    "no servers and no way to register": (
        "upstreams: [{name: a, replicas: []}]",
        "upstreams[0].replicas: must not be empty, unless servers register over the admin port",
    ),
    "keys that would go on": (
        "auth: {api_key: k}\nupstreams: [{name: a, replicas: ['http://a'], api_key: passthrough}]",
        "upstreams[0].api_key: must not be passthrough if auth is set",
    ),
    "a port for everybody": (
        "admin: {host: 0.0.0.0}",
        "admin.token: is required, because other machines can reach the port",
    ),
    "two sizes of a pool": (
        "engine: {num_blocks: 9, kv_fraction: 0.5}",
        "engine.kv_fraction: must not be set together with num_blocks",
    ),
    "steps too small": (
        "engine: {max_batch_tokens: 271}",
        "engine.max_batch_tokens: must be at least max_sequences (256) plus block_size (16)",
    ),
    "steps too small for what is asked": (
        "engine: {max_batch_tokens: 271, max_sequences: 240, block_size: 32}",
        "engine.max_batch_tokens: must be at least max_sequences (240) plus block_size (32)",
    ),
    "kernels of a GPU on a CPU": (
        "engine: {device: cpu, kernels: triton}",
        "engine.kernels: must not be triton on a CPU: Triton has no compiler for it",
    ),
    "kernels of a CPU on a GPU": (
        "engine: {device: cuda, kernels: torch}",
        "engine.kernels: must be auto or triton on a CUDA device: the others are for a CPU",
    ),
    "int8 on a GPU": ("engine: {device: cuda, quantization: int8}", "engine.quantization: is supported on a CPU only"),
    "an adapter in the model's place": (
        "engine: {model: a, adapters: {a: /x}}",
        "engine.adapters.a: is already the id of the model itself",
    ),
    "one port for two": ("admin: {port: 8000}", "admin.port: must not be listen.port on the same host"),
    "one port for all addresses and one of them": (
        "{listen: {host: 0.0.0.0}, admin: {port: 8000}}",
        "admin.port: must not be listen.port on the same host",
    ),
    "one port for all addresses of both versions": (
        "{listen: {host: 0.0.0.0}, admin: {port: 8000, host: '::', token: t}}",
        "admin.port: must not be listen.port on the same host",
    ),
    "one port for two names": (
        "admin: {port: 8000, host: localhost}",
        "admin.port: must not be listen.port on the same host",
    ),
    "blocks that do not fill a span": (
        "engine: {deterministic: true, block_size: 17}",
        "engine.block_size: must divide 256 in deterministic mode",
    ),
    "two sources of keys": (
        "auth: {api_keys_file: keys.yaml, api_key: k}",
        "auth.api_key: must not be set together with auth.api_keys_file",
    ),
    "a fallback to nothing": (
        "upstreams: [{name: a, replicas: ['http://a'], fallback: [a]}]",
        "upstreams[0].fallback[0]: is not the name of another upstream; there are: none",
    ),
}


@pytest.mark.parametrize(("text", "expected"), AGREEMENTS.values(), ids=AGREEMENTS)
def test_settings_that_do_not_go_together(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "keys.yaml").write_text(f"keys: [{{name: a, hash: 'sha256:{'0' * 64}'}}]")
    (problem,) = problems(write(tmp_path, text))
    assert problem.partition(": ")[2] == expected


def test_steps_may_be_just_large_enough(tmp_path: Path) -> None:
    engine = load(write(tmp_path, "engine: {max_batch_tokens: 272}"), {}).engine
    assert engine is not None
    assert engine.max_batch_tokens == 272


def test_all_that_does_not_go_together_is_told_at_once(tmp_path: Path) -> None:
    text = (
        "listen: {workers: 3}\n"
        "admin: {host: 0.0.0.0}\n"
        "auth: {api_key: k}\n"
        "limits: {inflight_choices: 64}\n"
        "upstreams:\n"
        "- {name: a, replicas: ['http://a'], parallel: 2, fallback: [nobody]}\n"
        "- {name: a, replicas: ['http://b'], api_key: passthrough}\n"
    )
    assert [problem.partition(": ")[0] for problem in problems(write(tmp_path, text))] == [
        f"nproxy.yaml:{line}" for line in (2, 4, 6, 6, 7, 7)
    ]


def test_beside_keys_of_its_own_a_clients_key_goes_nowhere(tmp_path: Path) -> None:
    text = "auth: {api_key: k}\nupstreams: [{name: a, replicas: ['http://a']}]"
    assert load(write(tmp_path, text), {}).upstreams[0].api_key == "none"


def test_files_stand_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(f"keys: [{{name: a, hash: 'sha256:{'0' * 64}'}}]")
    auth = load(write(tmp_path, "auth: {api_keys_file: keys.yaml}"), {}).auth
    assert auth is not None
    assert auth.api_keys_file == tmp_path / "keys.yaml"


def test_off_is_no_truth_value(tmp_path: Path) -> None:
    assert (
        load(write(tmp_path, "upstreams: [{name: a, replicas: ['http://a'], resume: off}]"), {}).upstreams[0].resume
        == "off"
    )


def test_parallel_is_shared_by_the_workers(tmp_path: Path) -> None:
    file = tmp_path / "n.yaml"
    settings = "listen: {workers: 3}\nupstreams:\n  - name: a\n    replicas: [http://h]\n    parallel: 2\n"
    file.write_text(settings)
    with pytest.raises(ConfigError) as raised:
        load(file, {})
    assert (
        str(raised.value)
        == f"{file}:5: upstreams[0].parallel: must be at least listen.workers, because the workers share it"
    )
    file.write_text(settings.replace("workers: 3", "workers: 2"))
    assert load(file, {}).listen.workers == 2


def test_two_ports_may_be_free_ones_or_of_two_addresses(tmp_path: Path) -> None:
    for ports in ("{listen: {port: 0}, admin: {port: 0}}", "{listen: {host: 127.0.0.2}, admin: {port: 8000}}"):
        assert load(write(tmp_path, ports), {}).admin is not None


@pytest.mark.parametrize(("gateway", "admin"), [("0.0.0.0", "::1"), ("127.0.0.1", "127.0.0.2")])
def test_one_port_of_hosts_that_do_not_overlap(tmp_path: Path, gateway: str, admin: str) -> None:
    text = f"{{listen: {{host: '{gateway}'}}, admin: {{port: 8000, host: '{admin}', token: t}}}}"
    assert load(write(tmp_path, text), {}).admin is not None

"""The command line as a user meets it: real processes, exit codes, one clear line per error."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from nproxy import __version__
from nproxy.cli import main
from nproxy.config import Config

CANARY = "canary-91c4"


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`nproxy` with these words and only these NPROXY_ variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NPROXY_")}
    argv = [sys.executable, "-m", "nproxy", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**kept, **environ}, check=False)


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"nproxy {__version__}\n", "")


def test_help_says_of_each_command_what_it_does() -> None:
    said = run("--help", COLUMNS="80").stdout
    listed = said[said.index("Commands:") :].splitlines()[1:]
    assert [line.split()[0] for line in listed] == sorted(main.commands)
    assert all(line.endswith(".") and not line.endswith("..") for line in listed), said


def test_help_of_serve_says_how_variables_are_named() -> None:
    assert "NPROXY_LISTEN__PORT" in run("serve", "--help").stdout


def test_check_prints_a_summary_of_a_good_file(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    fleet = f"{{name: fleet, replicas: ['http://a'], api_key: {CANARY}, models: [m], n: {{native_up_to: 4}}}}"
    file.write_text(f"listen: {{host: '::1'}}\nupstreams: [{fleet}]\n")
    done = run("check", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "listen    http://[::1]:8000, 1 worker",
        "upstream  fleet: http://a/v1; models m; n up to 4; parallel auto; balance least_inflight; resume off; key own",
        "n         up to 128; greedy accept; on_leg_failure fail",
        "limits    1024 choices in flight, 512 per key; 1024 wait up to 10 s",
        "auth      none: open to anybody on this machine",
        "paths     default passed through",
        "pages     playground at /, reference at /docs",
        "telemetry /metrics, json logs",
    ]


def test_check_says_how_much_is_traced(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text("telemetry: {otlp_endpoint: 'http://127.0.0.1:4318', trace_ratio: 0.1}")
    done = run("check", str(file))
    assert done.stdout.endswith("telemetry /metrics, json logs, traces of 10 % of requests to http://127.0.0.1:4318\n")


def test_check_says_what_a_fleet_is_made_of(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    digest = "sha256:" + "0" * 63
    (tmp_path / "law").mkdir()
    (tmp_path / "law" / "adapter_config.json").touch()
    (tmp_path / "keys.yaml").write_text(
        f"keys: [{{name: ann, hash: '{digest}1'}}, {{name: bob, hash: '{digest}2', disabled: true}}]"
    )
    file.write_text(f"""
listen: {{host: 0.0.0.0, workers: 2, trusted_proxies: [10.0.0.0/8], cors_origins: ['https://chat.example']}}
engine: {{device: cpu, quantization: int8, kernels: torch, deterministic: true, adapters: {{law: law}}}}
upstreams:
- name: a
  replicas: [{{url: 'http://a', weight: 3}}, 'dns:b:80']
  balance: prefix_affinity
  resume: replay
  fallback: [c]
- {{name: c, replicas: [], api_key: '{CANARY}', parallel: 4}}
n_policy: {{greedy: dedupe, on_leg_failure: partial}}
limits: {{tokens_per_minute: 900}}
passthrough: {{paths: [/v1/rerank], upstream: a}}
pages: {{playground: false}}
telemetry: {{log_content: true}}
auth: {{api_keys_file: keys.yaml}}
admin: {{token: '{CANARY}'}}
""")
    done = run("check", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert CANARY not in done.stdout
    said = done.stdout.splitlines()
    assert said[:2] == [
        "listen    http://0.0.0.0:8000, 2 workers, behind 10.0.0.0/8, for web pages of https://chat.example",
        "engine    smollm2-135m-instruct (auto, int8) on cpu with torch kernels; deterministic; adapters law",
    ]
    assert "http://a/v1 (weight 3), dns:b:80;" in said[2]
    assert "balance prefix_affinity; resume replay; fallback c; key none" in said[2]
    assert said[3].startswith("upstream  c: servers that register;")
    assert said[4:] == [
        "n         up to 128; greedy dedupe; on_leg_failure partial",
        "limits    1024 choices in flight, 512 per key; 1024 wait up to 10 s; per key 900 tokens per minute",
        "auth      2 keys: ann, bob (disabled)",
        "paths     /v1/rerank passed through to a",
        "pages     reference at /docs",
        "telemetry /metrics on the admin port, json logs, with prompts and answers",
        "admin     http://127.0.0.1:9000, with a token",
    ]


def test_the_engines_files_are_looked_for_beside_the_settings(tmp_path: Path) -> None:
    file, adapter = tmp_path / "nproxy.yaml", tmp_path / "law"
    file.write_text("engine:\n  model: ./m.gguf\n  adapters: {law: law}\n")
    assert (done := run("check", str(file))).returncode == 2
    assert done.stderr.splitlines() == [
        f"{file}:2: engine.model: model ./m.gguf: no such file or folder",
        f"{file}:3: engine.adapters.law: {adapter} has no adapter_config.json",
    ]
    long = "a" * 300  # refused by the system, as a folder is that this user may not enter
    file.write_text(f"engine:\n  model: ./{long}.gguf\n  adapters: {{law: {long}}}\n")
    assert (done := run("check", str(file))).returncode == 2
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == [f"{file}:2", f"{file}:3"]
    file.write_text("engine:\n  model: ./m.gguf\n  adapters: {law: law}\n")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    adapter.mkdir()
    (adapter / "adapter_config.json").touch()
    assert run("check", str(file)).returncode == 0


def test_check_says_who_may_come_in_where_there_are_no_keys(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    for host, who in {
        "127.0.0.1": "on this machine",
        "'::'": "who can reach ::",
        "gw.example": "who can reach gw.example",
    }.items():
        file.write_text(f"listen: {{host: {host}}}\ntelemetry: {{metrics: false, log_format: text}}")
        said = run("check", str(file)).stdout
        assert f"\nauth      none: open to anybody {who}\n" in said
        assert "telemetry no metrics, text logs" in said


def test_check_prints_each_error_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text(f"listen:\n  port: x\nupstreams:\n- name: a\n  api_key: {CANARY}\nauth: {{}}\n")
    done = run("check", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"{file}:2: listen.port: must be a whole number",
        f"{file}:4: upstreams[0].replicas: is required",
        f"{file}:6: auth: needs either api_keys_file or api_key",
    ]


def test_check_says_where_the_engines_model_can_be_none(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    models = {"nonexist": False, "smollm2-135m-instruct": True, "org/name": True, "./none.gguf": False}
    for model, right in models.items():
        file.write_text(f"engine: {{model: {model}}}\n")
        done = run("check", str(file))
        assert done.returncode == (0 if right else 2)
        assert right or done.stderr.startswith(f"{file}:1: engine.model: model {model}: ")


def test_check_of_no_file_or_no_yaml_is_2(tmp_path: Path) -> None:
    missing = run("check", str(tmp_path / "none"))
    assert (missing.returncode, missing.stderr) == (2, f"{tmp_path}/none: cannot be read: no such file or directory\n")
    (tmp_path / "bad").write_text("a: [")
    assert run("check", str(tmp_path / "bad")).returncode == 2
    assert run("check").returncode == 2


def test_check_sees_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text("{}")
    done = run("check", str(file), NPROXY_LISTEN__PORT="high")
    assert (done.returncode, done.stderr) == (2, "NPROXY_LISTEN__PORT: listen.port: must be a whole number\n")


def test_config_schema_is_a_json_schema_of_every_section() -> None:
    done = run("config-schema")
    schema = json.loads(done.stdout)
    assert done.returncode == 0
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert set(schema["properties"]) == set(Config.model_fields)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Listen"]["properties"]["port"] == {
        "default": 8000,
        "description": "TCP port; 0 takes a free one.",
        "maximum": 65535,
        "minimum": 0,
        "title": "Port",
        "type": "integer",
    }


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only line that was printed, on standard error."""
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    return line


def test_the_name_of_a_file_is_not_empty() -> None:
    for words in (("serve", "--config", ""), ("check", ""), ("keys", "list", "--file", "")):
        done = run(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[-1].endswith(": it is empty."), done.stderr


def test_serve_refuses_a_bad_url() -> None:
    done = run("serve", "--upstream", "127.0.0.1:8000")
    assert done.returncode == 2
    assert one_line(done) == "--upstream: upstreams[0].replicas[0]: must begin with http://, https:// or unix:/"


def test_serve_refuses_bad_numbers_by_their_option() -> None:
    done = run("serve", "--port", "http", "--max-n", "0")
    assert done.returncode == 2
    assert sorted(done.stderr.splitlines()) == [
        "--max-n: must be greater than or equal to 1",
        "--port: must be a whole number",
    ]


def test_serve_tells_that_the_folder_is_gone_in_which_it_looks_for_a_key(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$0" && rmdir "$0" && "$@"'
    words = ("serve", "--upstream", "http://127.0.0.1:1", "--api-key", "file:key")
    argv = ["sh", "-c", script, str(gone), sys.executable, "-m", "nproxy", *words]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environ, check=False)
    assert done.returncode == 2
    assert one_line(done) == "--api-key: the current directory does not exist"


def test_serve_refuses_an_unknown_model() -> None:
    done = run("serve", "--model", "gpt-9", "--port", "0")
    assert done.returncode == 2
    assert one_line(done).startswith("--model: model gpt-9: neither smollm2-135m-instruct, nor a file or folder here")


def test_serve_tells_that_the_port_is_in_use_before_anything_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--port", str(port), "--model", "gpt-9")
    assert done.returncode == 1
    assert one_line(done) == f"nproxy: 127.0.0.1:{port} is in use; choose another with --port"


def test_serve_tells_that_a_host_is_not_here() -> None:
    done = run("serve", "--upstream", "http://127.0.0.1:1", "--host", "192.0.2.1", "--port", "0")
    assert done.returncode == 1
    assert one_line(done).startswith("nproxy: cannot listen on 192.0.2.1")

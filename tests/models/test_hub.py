"""Models of a hub: real huggingface_hub against a hub on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fakes.model_hub import model_hub

RESOLVE = """
import sys
from nproxy.models import ModelError, resolve
try:
    model = resolve(sys.argv[1])
except ModelError as error:
    sys.exit(str(error))
print(model.id, *sorted(path.name for path in (model.path.iterdir() if model.path.is_dir() else [model.path])))
"""

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"model": {}}',
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"a pickle",
    "model.pt": b"a pickle",
    "evil.py": b"import os",
    "model.onnx": b"large",
}


def resolve(name: str, url: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Resolve in a process of its own: huggingface_hub reads its settings when it is imported."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    argv = [sys.executable, "-c", RESOLVE, name]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_weights_settings_and_templates_are_fetched_and_no_code_or_pickle(tmp_path: Path) -> None:
    with model_hub("org/name", FILES) as hub:
        done = resolve("org/name", hub.url, tmp_path)
    wanted = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert (done.stdout, done.returncode) == (f"org/name {' '.join(wanted)}\n", 0), done.stderr
    assert sorted(hub.downloaded) == wanted


def test_a_second_start_needs_no_hub(tmp_path: Path) -> None:
    with model_hub("org/name", FILES) as hub:
        first = resolve("org/name", hub.url, tmp_path)
    second = resolve("org/name", hub.url, tmp_path)
    assert (second.stdout, second.returncode) == (first.stdout, 0), second.stderr


def test_pickles_alone_are_refused(tmp_path: Path) -> None:
    with model_hub("org/name", {"config.json": b"{}", "pytorch_model.bin": b"a pickle"}) as hub:
        done = resolve("org/name", hub.url, tmp_path)
    assert done.returncode == 1
    assert "the repository has no .safetensors weights" in done.stderr.splitlines()[-1]
    assert hub.downloaded == ["config.json"]


def test_an_id_that_the_hub_does_not_know_is_one_clear_line(tmp_path: Path) -> None:
    with model_hub("org/name", FILES) as hub:
        done = resolve("org/other", hub.url, tmp_path)
    assert done.returncode == 1
    assert "model org/other: the hub has no such model" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_hub_that_is_down_is_one_clear_line(tmp_path: Path) -> None:
    done = resolve("org/name", "http://127.0.0.1:1", tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("model org/name: not in the cache, and the hub cannot be reached")
    assert "Traceback" not in done.stderr


def test_a_cache_that_cannot_be_written_is_not_the_hubs_fault() -> None:
    with model_hub("org/name", FILES) as hub:
        done = resolve("org/name", hub.url, Path("/sys/hub"))  # where not even root makes folders
    assert done.returncode == 1
    assert "model org/name: cannot be stored in /sys/hub" in done.stderr


def test_a_gguf_file_of_a_repository_is_served_under_its_stem(tmp_path: Path) -> None:
    files = {"Tiny.Q4.gguf": b"GGUF", "Tiny.Q8.gguf": b"GGUF, longer"}
    with model_hub("org/name", files) as hub:
        done = resolve("org/name/Tiny.Q4.gguf", hub.url, tmp_path)
    assert (done.stdout, done.returncode) == ("Tiny.Q4 Tiny.Q4.gguf\n", 0), done.stderr
    assert hub.downloaded == ["Tiny.Q4.gguf"]

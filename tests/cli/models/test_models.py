"""`nproxy models` as a user meets it: real huggingface_hub and real pip, against servers on loopback."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from nproxy.models import DEFAULT
from tests.fakes.model_hub import COMMIT, Hub, model_hub
from tests.fakes.terminal import nproxy, terminal

FOLDER = {
    "config.json": b"{}",
    "tokenizer.json": b'{"model": 1}',
    "model.safetensors": b"w" * 4986,
    "model.bin": b"a pickle",
}
GGUFS = {"README.md": b"#", "small.gguf": b"GGUF" + b"s" * 3000, "sub/large.gguf": b"GGUF" + b"l" * 7000}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGINGFACE_"))]:
        monkeypatch.delenv(name)
    for name, value in {"HF_HOME": tmp_path / "hf", "NPROXY_CACHE": tmp_path / "nproxy"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    return tmp_path


def models(*words: str, hub: Hub | None = None, given: str = "") -> subprocess.CompletedProcess[str]:
    """`nproxy models` in a pipe."""
    environment = {**os.environ, **({} if hub is None else {"HF_ENDPOINT": hub.url})}
    argv = nproxy("models", *words)
    return subprocess.run(argv, input=given, env=environment, capture_output=True, text=True, timeout=100, check=False)


def listed() -> dict[str, int]:
    """Names and sizes."""
    return {model["name"]: model["bytes"] for model in json.loads(models("list", "--json").stdout)["models"]}


def test_nothing_is_here_at_first(place: Path) -> None:
    done = models("list")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"{DEFAULT.id}, the default, is not here yet: nproxy models pull\n"
    done = models("remove", "--yes", DEFAULT.id)
    assert (done.returncode, done.stderr) == (
        2,
        f"nproxy: no model here is named {DEFAULT.id}; see: nproxy models list\n",
    )


def test_a_model_of_the_hub_comes_and_goes(place: Path) -> None:
    with model_hub("org/name", FOLDER) as hub:
        first = models("pull", "org/name", hub=hub)
        again = models("pull", "org/name", hub=hub)
    folder = place / "hf" / "hub" / "models--org--name" / "snapshots" / COMMIT
    assert (first.returncode, first.stdout, first.stderr) == (0, f"{folder}\n", "")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert sorted(hub.downloaded) == ["config.json", "model.safetensors", "tokenizer.json"]  # each of them once
    assert listed() == {"org/name": 5000}
    assert models("list").stdout == f"org/name\t5000\t{folder}\n"
    asked = models("remove", "org/name")
    assert (asked.returncode, asked.stderr) == (
        2,
        "nproxy: nobody can be asked here: --yes removes without a question\n",
    )
    assert models("remove", "--yes", "org/name").stdout == "removed org/name, 5.0 kB\n"
    assert listed() == {}
    assert not folder.parents[1].exists()


def test_files_of_a_repository_are_models_of_their_own(place: Path) -> None:
    with model_hub("org/ggufs", GGUFS) as hub:
        which = models("pull", "org/ggufs", hub=hub)
        small = models("pull", "org/ggufs/small.gguf", hub=hub)
        large = models("pull", "org/ggufs/sub/large.gguf", hub=hub)
        none = models("pull", "org/ggufs/none.gguf", hub=hub)
    assert (which.returncode, which.stderr.count("\n")) == (1, 1)
    assert which.stderr.endswith("each a file; name one: org/ggufs/small.gguf, org/ggufs/sub/large.gguf\n")
    assert Path(small.stdout.strip()).read_bytes() == GGUFS["small.gguf"]
    assert Path(large.stdout.strip()).read_bytes() == GGUFS["sub/large.gguf"]
    assert (none.returncode, none.stderr) == (
        1,
        "nproxy: model org/ggufs/none.gguf: the repository holds no such file\n",
    )
    assert listed() == {"org/ggufs/small.gguf": 3004, "org/ggufs/sub/large.gguf": 7004}
    assert models("remove", "--yes", "org/ggufs/sub/large.gguf").returncode == 0
    assert listed() == {"org/ggufs/small.gguf": 3004}
    assert sum(path.stat().st_size for path in place.rglob("blobs/*")) == 3004
    assert models("remove", "--yes", "org/ggufs/small.gguf").returncode == 0
    assert not (place / "hf" / "hub" / "models--org--ggufs").exists()


def test_a_download_that_broke_off_is_taken_up_again(place: Path) -> None:
    """Within the same command from about where it broke off, by the next one from the files that were whole."""
    chunk = 10 * 2**20  # what the library writes at once
    large = {**FOLDER, "model.safetensors": b"w" * (2 * chunk + 2)}
    with model_hub("org/name", large) as hub:
        hub.cut = "model.safetensors"
        done = models("pull", "org/name", hub=hub)
    assert (done.returncode, done.stderr) == (0, "")
    assert hub.resumed == [chunk]
    assert listed() == {"org/name": 2 * chunk + 16}


def test_offline_is_one_clear_line(place: Path) -> None:
    for name in ("org/name", "org/name/file.gguf"):
        done = models("pull", name)
        assert (done.returncode, done.stdout) == (1, "")
        why = f"nproxy: model {name}: not in the cache, and the hub cannot be reached; give --model PATH"
        assert done.stderr.splitlines()[-1] == why


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gpt-9", "neither smollm2-135m-instruct, nor a file or folder here, nor a hub id such as org/name"),
        ("./none.gguf", "no such file or folder"),
        (".", "is a path, and here already"),
    ],
)
def test_a_name_that_can_mean_no_model_is_wrong_use(place: Path, name: str, why: str) -> None:
    done = models("pull", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr


async def test_at_a_terminal_it_asks_first(place: Path) -> None:
    with model_hub("org/name", FOLDER) as hub:
        async with terminal(*nproxy("models", "pull", "org/name"), HF_ENDPOINT=hub.url) as screen:
            assert await screen.ended() == 0
            assert "fetching org/name" in await screen.until(COMMIT)
    async with terminal(*nproxy("models", "list")) as screen:
        assert await screen.ended() == 0
        text = await screen.until("models--org--name")
        assert "5.0 kB" in text
    for answer, left in (("n\n", {"org/name": 5000}), ("y\n", {})):
        async with terminal(*nproxy("models", "remove", "org/name")) as screen:
            await screen.until("Remove it? [y/N]: ")
            assert "org/name, 5.0 kB, in " in screen.text
            screen.type(answer)
            assert await screen.ended() == 0
        assert listed() == left

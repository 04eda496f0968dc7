"""What a model's name may mean."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nproxy.models import LocalModel, ModelError, NoSuchModel, resolve


def folder_with(parent: Path, *names: str) -> Path:
    folder = parent / "My-Model"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("{}")
    return folder


def test_a_folder_is_served_under_its_name(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "config.json", "model.safetensors")
    assert resolve(str(folder)) == LocalModel("My-Model", folder)


def test_a_gguf_file_is_served_under_its_stem(tmp_path: Path) -> None:
    file = tmp_path / "Tiny.Q4.gguf"
    file.write_bytes(b"GGUF....")
    assert resolve(str(file)) == LocalModel("Tiny.Q4", file)


def test_a_gguf_file_in_the_hubs_cache_is_served_under_its_own_name(tmp_path: Path) -> None:
    blob, link = tmp_path / "blobs" / "e3b0c442", tmp_path / "snapshots" / "main" / "Tiny.Q4.gguf"
    for file in (blob, link):
        file.parent.mkdir(parents=True)
    blob.write_bytes(b"GGUF....")
    link.symlink_to(blob)
    assert resolve(str(link)) == LocalModel("Tiny.Q4", link)


def test_a_relative_path_goes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path, "config.json", "model.safetensors")
    monkeypatch.chdir(tmp_path.parent)
    assert resolve(f"{tmp_path.name}/My-Model").path == folder


@pytest.mark.parametrize("name", ["My-Model", "./My-Model", "../{parent}/My-Model"])
def test_a_relative_path_starts_at_the_given_folder(tmp_path: Path, name: str) -> None:
    folder = folder_with(tmp_path, "config.json", "model.safetensors")
    assert resolve(name.format(parent=tmp_path.name), tmp_path) == LocalModel("My-Model", folder)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gpt-9", "neither smollm2-135m-instruct, nor a file or folder here, nor a hub id such as org/name"),
        ("/no/such/folder", "no such file or folder"),
        ("./folder", "no such file or folder"),
        ("org/missing.gguf", "no such file or folder"),
        ("a/b/c", "neither"),
        ("~no-such-user/model", "no such file or folder"),
    ],
)
def test_a_name_that_means_nothing_is_wrong_use(name: str, reason: str) -> None:
    with pytest.raises(NoSuchModel, match=reason):
        resolve(name)


def test_a_path_that_the_system_refuses_is_one_clear_line() -> None:
    """As it refuses one in a folder that this user may not enter; newer Pythons take both for paths to nothing."""
    with pytest.raises(ModelError, match=r"^model /tmp/aaa.*: (File name too long|no such file or folder)$"):
        resolve("/tmp/" + "a" * 300)


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(NoSuchModel, match=r"has no config\.json"):
        resolve(str(folder_with(tmp_path, "model.safetensors")))


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="pickled weights can run code and are refused"):
        resolve(str(folder_with(tmp_path, "config.json", "pytorch_model.bin")))


def test_a_file_of_another_kind_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"PK\x03\x04")
    with pytest.raises(NoSuchModel, match="neither a GGUF file nor a folder"):
        resolve(str(file))


def test_what_is_no_regular_file_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with (
        os.fdopen(os.open(tmp_path / "pipe.gguf", os.O_RDWR), "wb", buffering=0) as writer,
        pytest.raises(NoSuchModel, match="neither a GGUF file nor a folder"),
    ):
        writer.write(b"GGUF")
        resolve(str(tmp_path / "pipe.gguf"))


def test_a_hub_that_cannot_be_reached_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"^model org/never-fetched: not in the cache, and the hub cannot be reached"):
        resolve("org/never-fetched")


def test_a_hub_id_needs_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install '\.\[engine\]' in nproxy's folder"):
        resolve("org/name")

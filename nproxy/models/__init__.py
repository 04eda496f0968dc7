"""Models on this machine: the default one, a path, an id of the Hugging Face hub, or a GGUF file there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nproxy.models.errors import ModelError, NoCache, NoSuchModel
from nproxy.models.hub import HUB_FILE, HUB_ID, demand_safetensors, file_from_hub, from_hub
from nproxy.models.inventory import Kept, kept
from nproxy.models.packaged import DEFAULT, Packaged, cache_folder, fetch

__all__ = [
    "DEFAULT",
    "Kept",
    "LocalModel",
    "ModelError",
    "NoCache",
    "NoSuchModel",
    "Packaged",
    "cache_folder",
    "demand",
    "fetch",
    "kept",
    "resolve",
]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A local model: the id under which it is served, and its .gguf file or Hugging Face folder."""

    id: str
    path: Path


def resolve(name: str, folder: Path = Path()) -> LocalModel:
    """Find a model by the default's id, a path, a hub id or a file on the hub; fetch it if it is not local yet.

    folder: where relative paths start.
    Shows progress on standard error if that is a terminal. Raises ModelError, in particular NoSuchModel if the name
    cannot be that of a model.
    """
    return _way_to(name, folder)()


def demand(name: str, folder: Path = Path()) -> None:
    """Check a name without fetching anything.

    folder: where relative paths start.
    Raises NoSuchModel if it cannot be that of a model, NoCache if the default one has no place to be kept, and
    ModelError if a local path holds no usable model.
    """
    _way_to(name, folder)


def _way_to(name: str, folder: Path) -> Callable[[], LocalModel]:
    if name == DEFAULT.id:
        place = cache_folder()
        return lambda: LocalModel(DEFAULT.id, fetch(DEFAULT, place))
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:  # ~ with the name of no user
        raise NoSuchModel(f"model {name}: no such file or folder") from error
    try:
        if name and (folder / path).exists():  # the empty name would be the folder itself
            here = _local(folder / path)
            return lambda: here
    except OSError as error:  # it is in a folder that this user may not enter, or its name is too long
        raise ModelError(f"model {folder / path}: {error.strerror}") from error
    if HUB_ID.fullmatch(name) and path.suffix != ".gguf":
        return lambda: LocalModel(name, from_hub(name))
    if not path.is_absolute() and (there := HUB_FILE.fullmatch(name)) is not None:
        repository, file = there.groups()
        return lambda: LocalModel(path.stem, file_from_hub(repository, file))
    if path.suffix == ".gguf" or path.is_absolute() or name.startswith((".", "~")):
        raise NoSuchModel(f"model {name}: no such file or folder")
    raise NoSuchModel(f"model {name}: neither {DEFAULT.id}, nor a file or folder here, nor a hub id such as org/name")


def _local(path: Path) -> LocalModel:
    if path.is_dir():
        path = path.resolve()
        if not (path / "config.json").is_file():
            raise NoSuchModel(
                f"model {path}: the folder has no config.json, so it is not a model in Hugging Face's layout"
            )
        demand_safetensors(path, str(path))
        return LocalModel(path.name, path)
    path = path.parent.resolve() / path.name  # in the hub's cache it is a link to a file whose name is a hash
    magic = b""
    if path.is_file():  # to open a pipe would wait for whoever writes into it
        with path.open("rb") as file:
            magic = file.read(4)
    if magic != b"GGUF":
        raise NoSuchModel(f"model {path}: neither a GGUF file nor a folder in Hugging Face's layout")
    return LocalModel(path.stem, path)

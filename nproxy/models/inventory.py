"""The models on this machine: where they are, how large they are, and their removal."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nproxy.models.errors import ModelError
from nproxy.models.packaged import DEFAULT, Packaged, alone, cache_folder, record_of

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, CachedRepoInfo, HFCacheInfo


@dataclass(frozen=True, slots=True)
class Kept:
    """A model on this machine."""

    name: str
    """The name that `--model` takes."""
    size: int
    """Size on disk in bytes."""
    path: Path
    """Its file, or the folder of its files."""
    origin: Literal["nproxy", "hub"]
    """Whose cache it is in."""
    remove: Callable[[], None] = field(repr=False, compare=False)
    """Deletes it; raises OSError."""


def kept(default: Packaged = DEFAULT) -> list[Kept]:
    """Return all local models: the default one, and those in the Hugging Face hub's cache that nproxy can serve."""
    return [*_packaged(default), *sorted(_of_hub(), key=lambda model: model.name)]


def _packaged(model: Packaged) -> Iterator[Kept]:
    """Yield the default model, if it is complete."""
    home = cache_folder() / model.id
    file = home / model.file_name

    def remove() -> None:
        with alone(home / ".lock"):  # another process may be fetching it, and needs the folder
            record_of(file).unlink(missing_ok=True)
            file.unlink()

    if file.is_file() and file.stat().st_size == model.file_bytes:
        yield Kept(model.id, model.file_bytes, file, "nproxy", remove)


def _of_hub() -> Iterator[Kept]:
    if importlib.util.find_spec("huggingface_hub") is None:
        return
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir()
    except CacheNotFound:
        return
    except (OSError, ValueError) as error:
        raise ModelError(f"the hub's cache cannot be read: {error}") from error
    for repository in cache.repos:
        if repository.repo_type == "model":
            yield from _of_repository(cache, repository)


def _of_repository(cache: HFCacheInfo, repository: CachedRepoInfo) -> Iterator[Kept]:
    """Yield a repository with safetensors as one model; of others, each GGUF file is a model."""
    newest = max(repository.revisions, key=lambda revision: revision.last_modified, default=None)
    if newest is None:
        return
    commits = [revision.commit_hash for revision in repository.revisions]
    if any(file.file_name.endswith(".safetensors") for file in newest.files):
        remove = cache.delete_revisions(*commits).execute
        yield Kept(repository.repo_id, repository.size_on_disk, newest.snapshot_path, "hub", remove)
        return
    names = {str(file.file_path.relative_to(newest.snapshot_path)): file for file in newest.files}
    models = {name: file for name, file in names.items() if name.endswith(".gguf")}
    for name, file in models.items():
        alike = (
            cache.delete_files(*_everywhere(repository, name)) if len(models) > 1 else cache.delete_revisions(*commits)
        )
        yield Kept(f"{repository.repo_id}/{name}", file.size_on_disk, file.file_path, "hub", alike.execute)


def _everywhere(repository: CachedRepoInfo, name: str) -> Iterator[CachedFileInfo]:
    """Yield a file of a repository in all its revisions."""
    for revision in repository.revisions:
        for file in revision.files:
            if str(file.file_path.relative_to(revision.snapshot_path)) == name:
                yield file

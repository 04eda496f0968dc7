"""Fetches models of the Hugging Face hub into the hub's own cache, which other programs share.

Complete files are not fetched again, and a file appears under its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import importlib.util
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from nproxy.models.errors import ModelError
from nproxy.models.interrupt import leaving_at_once
from nproxy.models.progress import growth

HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
HUB_FILE = re.compile(rf"({HUB_ID.pattern})/([^/].*\.gguf)")
"""One GGUF file of a repository, such as org/name/file.gguf: the repository, and the file in it."""
HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt")
"""What is fetched from the hub: weights, settings, templates, merges. Never a pickle."""

_NO_STORING = frozenset({errno.EACCES, errno.EDQUOT, errno.ENOSPC, errno.EPERM, errno.EROFS})
"""Errors of the system that are about this machine's files, and not about the hub."""


def from_hub(name: str) -> Path:
    """Fetch a model from the hub, or find it in the hub's own cache. Raises ModelError."""
    with _in_words(name):
        folder = _fetched(name, name, HUB_FILES)
        if not any(folder.glob("*.safetensors")) and (files := _gguf_files(name)):
            shown = ", ".join(f"{name}/{file}" for file in files)
            raise ModelError(f"model {name}: the repository holds several models, each in one file; name one: {shown}")
    demand_safetensors(folder, name)
    return folder


def file_from_hub(repository: str, file: str) -> Path:
    """Fetch one file of a repository, or find it in the hub's own cache. Raises ModelError."""
    name = f"{repository}/{file}"
    with _in_words(name):
        found = _fetched(name, repository, [glob.escape(file)]) / file
    if not found.is_file():
        raise ModelError(f"model {name}: the repository holds no such file")
    return found


def demand_safetensors(folder: Path, shown: str) -> None:
    """Raise ModelError if a model's folder has no weights in a format that is safe to read."""
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"model {shown}: the repository has no .safetensors weights (pickled weights can run code and are refused)"
        )


def _fetched(name: str, repository: str, patterns: Sequence[str]) -> Path:
    """Fetch the files of a repository's newest revision that match a pattern; returns their folder.

    On a terminal a progress bar is shown; the library's own bars and warnings are turned off.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import DryRunError
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    missing = 0
    if sys.stderr.isatty():
        with contextlib.suppress(DryRunError):  # the hub cannot be reached; local files may be enough
            plan = snapshot_download(repository, allow_patterns=[*patterns], dry_run=True)
            missing = sum(file.file_size or 0 for file in plan if file.will_download)
    folder = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model")
    stopped = f"nproxy: model {name}: not fetched completely; run the same command again to fetch the rest"
    bar = growth(f"fetching {name}", folder, missing) if missing else nullcontext()
    with leaving_at_once(stopped, ".incomplete"), bar:
        return Path(snapshot_download(repository, allow_patterns=[*patterns]))


def _gguf_files(name: str) -> list[str]:
    from huggingface_hub import list_repo_files

    return sorted(file for file in list_repo_files(name) if file.endswith(".gguf"))


@contextlib.contextmanager
def _in_words(name: str) -> Iterator[None]:
    """Convert errors of the hub to ModelError."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ModelError(
            f"model {name}: fetching from the hub needs the engine: pip install '.[engine]' in nproxy's folder"
        )
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        yield
    except GatedRepoError as error:
        raise ModelError(f"model {name}: access to it must be granted on the hub first; then set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"model {name}: the hub has no such model (or HF_TOKEN has no access to it)") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"model {name}: not in the cache, and the hub cannot be reached; see: nproxy models list"
        ) from error
    except HFValidationError as error:
        raise ModelError(f"model {name}: this is not a valid id for the hub") from error
    except (HfHubHTTPError, OSError) as error:
        if error.errno in _NO_STORING:
            where = error.filename or "the hub's cache"
            raise ModelError(f"model {name}: cannot be stored in {where}: {error.strerror}") from error
        raise ModelError(f"model {name}: the hub answered with an error: {str(error).splitlines()[0]}") from error

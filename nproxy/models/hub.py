"""A model of the Hugging Face hub, fetched into the hub's own cache, which other programs share.

What is there in full is not fetched again, and a file appears under its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from nproxy.models.errors import ModelError
from nproxy.models.progress import growth

if TYPE_CHECKING:
    from huggingface_hub.file_download import DryRunFileInfo

HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
HUB_FILE = re.compile(rf"({HUB_ID.pattern})/([^/].*\.gguf)")
"""One GGUF file of a repository, as in org/name/file.gguf: the repository, and the file in it."""
HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt")
"""What is taken from the hub: weights, settings, templates, merges. Never a pickle."""


def from_hub(name: str) -> Path:
    """Fetch a model from the hub, or find it in the hub's own cache. Raises ModelError."""
    _demand_library(name)
    from huggingface_hub import snapshot_download

    with _in_words(name):
        with _bar(name, name, lambda: snapshot_download(name, allow_patterns=list(HUB_FILES), dry_run=True)):
            folder = Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
        if not any(folder.glob("*.safetensors")) and (files := _gguf_files(name)):
            shown = ", ".join(f"{name}/{file}" for file in files)
            raise ModelError(f"model {name}: several models, each a file; name one: {shown}")
    demand_safetensors(folder, name)
    return folder


def file_from_hub(repository: str, file: str) -> Path:
    """Fetch one file of a repository, or find it in the hub's own cache. Raises ModelError."""
    name = f"{repository}/{file}"
    _demand_library(name)
    from huggingface_hub import hf_hub_download

    with _in_words(name), _bar(repository, name, lambda: [hf_hub_download(repository, file, dry_run=True)]):
        return Path(hf_hub_download(repository, file))


def demand_safetensors(folder: Path, shown: str) -> None:
    """Raise ModelError where a model's folder has no weights in a form that is safe to read."""
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"model {shown}: no .safetensors weights there (pickled weights can run code and are refused)")


def _demand_library(name: str) -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ModelError(f"model {name}: fetching from the hub needs the engine: pip install 'nproxy[engine]'")


def _gguf_files(name: str) -> list[str]:
    from huggingface_hub import list_repo_files

    return sorted(file for file in list_repo_files(name) if file.endswith(".gguf"))


def _bar(repository: str, name: str, plan: Callable[[], list[DryRunFileInfo]]) -> AbstractContextManager[None]:
    """A bar of what the plan says is missing; the library's own ones, which know files and not models, stay away."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import DryRunError, LocalEntryNotFoundError
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    if not sys.stderr.isatty():
        return nullcontext()
    try:
        missing = sum(file.file_size or 0 for file in plan() if file.will_download)
    except (DryRunError, LocalEntryNotFoundError):  # the hub cannot be reached; what is here may do
        return nullcontext()
    folder = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model")
    return growth(f"fetching {name}", folder, missing) if missing else nullcontext()


@contextlib.contextmanager
def _in_words(name: str) -> Iterator[None]:
    """Tell what goes wrong with the hub as a ModelError."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
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
        raise ModelError(f"model {name}: the hub knows no such model (or HF_TOKEN may not see it)") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(f"model {name}: not in the cache, and the hub cannot be reached; give --model PATH") from error
    except EntryNotFoundError as error:
        raise ModelError(f"model {name}: the repository holds no such file") from error
    except HFValidationError as error:
        raise ModelError(f"model {name}: the hub takes no such id") from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(f"model {name}: the hub gave an error: {str(error).splitlines()[0]}") from error

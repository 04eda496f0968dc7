"""A model of the Hugging Face hub, fetched into the hub's own cache, which other programs share."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from nproxy.models.errors import ModelError

HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt")
"""What is taken from the hub: weights, settings, templates, merges. Never a pickle."""


def from_hub(name: str) -> Path:
    """Fetch a model from the hub, or find it in the hub's own cache. Raises ModelError."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ModelError(f"model {name}: fetching from the hub needs the engine: pip install 'nproxy[engine]'")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        folder = Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except GatedRepoError as error:
        raise ModelError(f"model {name}: access to it must be granted on the hub first; then set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"model {name}: the hub knows no such model (or HF_TOKEN may not see it)") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(f"model {name}: not in the cache, and the hub cannot be reached; give --model PATH") from error
    except HFValidationError as error:
        raise ModelError(f"model {name}: the hub takes no such id") from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(f"model {name}: the hub gave an error: {str(error).splitlines()[0]}") from error
    demand_safetensors(folder, name)
    return folder


def demand_safetensors(folder: Path, shown: str) -> None:
    """Raise ModelError where a model's folder has no weights in a form that is safe to read."""
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"model {shown}: no .safetensors weights there (pickled weights can run code and are refused)")

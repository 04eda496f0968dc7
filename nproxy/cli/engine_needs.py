"""What the built-in engine needs on this machine before it can start: its packages, its model and its adapters."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from nproxy import models
from nproxy.config import ConfigError, Engine, Problem, Reading

_NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "jinja2", "numpy")


class NotInstalled(Exception):
    """Packages of the engine are not installed; the message is for the user, and says how they are."""


def demand_installed() -> None:
    """Raise NotInstalled if packages of the engine are not installed; imports none of them."""
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise NotInstalled(
            f"the built-in engine needs {missing[0]}: pip install '.[engine]' in nproxy's folder"
            " (or use another server: nproxy serve --upstream URL)"
        )


def model_folder(reading: Reading) -> Path:
    """Return where the model's path starts: beside the settings, or here if an option named the model."""
    return Path() if reading.tree.origin(("engine", "model")).source == "--model" else reading.folder


def demand_usable(engine: Engine, reading: Reading) -> None:
    """Raise ConfigError if the model or adapters cannot be used, each at the place where it was set; fetches nothing.

    The engine would find out about its adapters only when its model is loaded.
    """
    if problems := [*_problems(engine, reading)]:
        raise ConfigError(problems)


def _problems(engine: Engine, reading: Reading) -> Iterator[Problem]:
    try:
        models.demand(engine.model, model_folder(reading))
    except models.ModelError as error:
        yield Problem(reading.tree.origin(("engine", "model")), ("engine", "model"), str(error))
    for name, folder in engine.adapters.items():
        path = ("engine", "adapters", name)
        try:
            if not (Path(folder) / "adapter_config.json").is_file():
                yield Problem(reading.tree.origin(path), path, f"{folder} has no adapter_config.json")
        except OSError as error:  # a folder that this user may not enter, or a name that is too long
            yield Problem(reading.tree.origin(path), path, f"{folder}: {error.strerror}")

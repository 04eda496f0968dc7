"""Reads the JSON files of a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.model_files import MOST_BYTES, demand_file


def read_object(file: Path, *, optional: bool = False) -> dict[str, Any]:
    """Return a file's object; empty if the file is optional and does not exist.

    Raises ModelError if it is missing, damaged or something else.
    """
    value = _read(file, {}, optional)
    if not isinstance(value, dict):
        raise ModelError(f"{file} does not contain an object")
    return value


def read_list(file: Path, *, optional: bool = False) -> list[Any]:
    """Return a file's list; everything else as `read_object`."""
    value = _read(file, [], optional)
    if not isinstance(value, list):
        raise ModelError(f"{file} does not contain a list")
    return value


def _read(file: Path, empty: Any, optional: bool) -> Any:
    demand_file(file, MOST_BYTES)
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        if optional and isinstance(error, FileNotFoundError):
            return empty
        raise ModelError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
        raise ModelError(f"{file} cannot be read: {error}") from error

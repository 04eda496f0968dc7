"""A Hugging Face folder: config.json and safetensors, in one file or in shards named by an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelError
from engine.json_files import read_object
from engine.model_files import demand_file
from engine.models.spec import ModelSpec
from engine.models.spec_hf import spec_from_hf
from engine.models.stored import Sizes

_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}  # of a number, by its type as safetensors writes it
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class _Folder:
    """Open shards; `where` maps each tensor's name to its shard."""

    def __init__(self, spec: ModelSpec, where: Mapping[str, Any]) -> None:
        self.spec = spec
        self.names = frozenset(where)
        self._where = where

    @property
    def sizes(self) -> Sizes:
        return _sizes(self._where)

    def demand(self, name: str, shape: tuple[int, ...]) -> None:
        shard = self._where.get(name)
        if shard is None:
            raise ModelError(f"the checkpoint has no tensor {name}")
        if (own := tuple(shard.get_slice(name).get_shape())) != shape:
            raise ModelError(f"tensor {name} has shape {own}, but the config requires {shape}")

    def read(self, name: str, out: torch.Tensor) -> None:
        out.copy_(self._find(name, tuple(out.shape)))

    def stored(self, name: str, shape: tuple[int, int]) -> torch.Tensor | None:
        tensor = self._find(name, shape)
        return tensor if tensor.dtype == torch.bfloat16 else None

    def _find(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        self.demand(name, shape)
        try:
            tensor: torch.Tensor = self._where[name].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"tensor {name} cannot be read: {error}") from error
        if tensor.dtype not in _FLOATS:
            raise ModelError(f"tensor {name} is of type {tensor.dtype}; only unquantized floats are supported")
        return tensor


@contextmanager
def open_folder(folder: Path) -> Iterator[_Folder]:
    """Open all shards; raise ModelError if the folder holds no model that can be run."""
    config = read_object(folder / "config.json")
    spec = spec_from_hf(config, read_eos(folder))
    with ExitStack() as stack:
        yield _Folder(spec, _open_shards(folder, stack))


def read_eos(folder: Path) -> Any:
    """Return eos_token_id of generation_config.json, which takes precedence over that of config.json; None if it has
    none.
    """
    return read_object(folder / "generation_config.json", optional=True).get("eos_token_id")


def check_tensors(folder: Path) -> Sizes:
    """Open all files before others read them, and return how large the tensors are.

    Raises ModelError if a file is missing, damaged, a pickle or quantized.
    """
    with ExitStack() as stack:
        tensors = _open_shards(folder, stack)
        for name, shard in tensors.items():
            # Buffers may be whole numbers (GPT-2's old masks); weights may not.
            kind = shard.get_slice(name).get_dtype()
            if name.endswith("weight") and kind not in _BYTES:
                raise ModelError(f"tensor {name} is of type {kind}; only unquantized floats are supported")
        return _sizes(tensors)


def _sizes(where: Mapping[str, Any]) -> Sizes:
    found = []
    for name, shard in where.items():
        tensor = shard.get_slice(name)
        packed = 2 if name.endswith("_blocks") else 1  # numbers of a byte, in MXFP4
        count = prod(tensor.get_shape()) * packed
        found.append((count, count * _BYTES.get(tensor.get_dtype(), 1)))
    return found


def _open_shards(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Return each tensor's open file. A tensor that is in two files, or not where the index says, is refused."""
    files = _shard_files(folder)
    where: dict[str, Any] = {}
    holder: dict[str, str] = {}
    for file in dict.fromkeys(files.values()):
        demand_file(file)
        try:
            shard = stack.enter_context(safe_open(file, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file} is damaged or truncated: {error}") from error
        for name in shard.keys():  # noqa: SIM118  (a safetensors file is no mapping)
            if name in where:
                raise ModelError(f"tensor {name} is in {holder[name]} and in {file.name}")
            where[name], holder[name] = shard, file.name
    for name, file in files.items():
        if name and holder.get(name) != file.name:
            raise ModelError(f"tensor {name} is not in {file.name}, where the index expects it")
    return where


def _shard_files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor according to the index; a single file is returned alone, under no name."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        named = read_object(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
            raise ModelError(f"{index} has no weight_map of file names")
        files = {name: folder / file for name, file in sorted(named.items(), key=lambda pair: pair[1])}
        for file in dict.fromkeys(files.values()):
            # A name in the index must stay inside the folder.
            if file.parent != folder or file.suffix != ".safetensors":
                raise ModelError(f"{index} names {file.name!r}, which is not a safetensors file in this folder")
            if not file.exists():
                raise ModelError(f"{file} is missing: {index.name} names it")
        return files
    if single.exists():
        return {"": single}
    pickles = sorted(file.name for suffix in ("*.bin", "*.pt", "*.pth") for file in folder.glob(suffix))
    if pickles:
        raise ModelError(
            f"{folder} contains only pickles ({pickles[0]}), which can run any code when opened;"
            " convert them to safetensors"
        )
    raise ModelError(f"{folder} contains neither model.safetensors nor model.safetensors.index.json")

"""Weights that cannot be in memory are refused before they are read."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import psutil
import pytest
import torch
from safetensors.torch import save_file

from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner
from engine.errors import ConfigError
from engine.models.hf_folder import check_tensors
from engine.models.load import load_model
from engine.models.room import least_bytes
from engine.models.stored import Sizes
from engine.models.weights import open_checkpoint
from engine.resources import ram, swap
from tests.fakes.tiny_gguf import write_gguf
from tests.fakes.tiny_models import make, save

REFUSED = r"^the weights of {} take at least 0\.0 GiB, and there are 0\.0 GiB of memory$"


def numbers(model: Any) -> int:
    """How many weights a model's file has; tied ones are in it once."""
    return sum(tensor.numel() for tensor in model.parameters())


def sizes(path: Path) -> Sizes:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.sizes


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of memory that there seem to be, in a list to be changed."""
    there = [0]
    monkeypatch.setattr("engine.models.room.ram", lambda: there[0] // 2)
    monkeypatch.setattr("engine.models.room.swap", lambda: there[0] - there[0] // 2)
    return there


@pytest.mark.parametrize("shard", ["1GB", "20KB"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_folder(tmp_path: Path, memory: list[int], dtype: torch.dtype, shard: str) -> None:
    memory[0] = numbers(save(tmp_path, shard=shard)) * dtype.itemsize
    assert load_model(tmp_path, dtype, None).vocab == 97
    memory[0] -= 1
    with pytest.raises(ConfigError, match=REFUSED.format(tmp_path)):
        load_model(tmp_path, dtype, None)


def test_a_model_that_transformers_runs(tmp_path: Path, memory: list[int]) -> None:
    memory[0] = numbers(save(tmp_path, "gpt_neox")) * 4
    assert load_model(tmp_path, torch.float32, None).vocab == 97
    memory[0] -= 1
    for device in ("cpu", "meta"):  # transformers loads into this memory whatever the device
        with pytest.raises(ConfigError, match=REFUSED.format(tmp_path)):
            load_model(tmp_path, torch.float32, None, device=torch.device(device))


def test_quantized_while_it_loads(tmp_path: Path, memory: list[int]) -> None:
    memory[0] = numbers(save(tmp_path))
    assert load_model(tmp_path, torch.float32, None, int8=True).vocab == 97
    memory[0] -= 1
    with pytest.raises(ConfigError, match=REFUSED.format(tmp_path)):
        load_model(tmp_path, torch.float32, None, int8=True)


def test_a_folder_in_bfloat16_may_be_kept_so(tmp_path: Path) -> None:
    """The native kernels do that, and compute in float32."""
    model = make().bfloat16()
    model.save_pretrained(tmp_path)
    count = numbers(model)
    assert least_bytes(sizes(tmp_path), 4, keep=True) == 2 * count
    assert least_bytes(sizes(tmp_path), 4, keep=False) == 4 * count


def test_two_numbers_in_a_byte(tmp_path: Path) -> None:
    """MXFP4, which transformers makes bfloat16 of."""
    save_file({"mlp.down_proj_blocks": torch.zeros(3, 8, dtype=torch.uint8)}, tmp_path / "model.safetensors")
    assert least_bytes(check_tensors(tmp_path), 2, keep=False) == 3 * 8 * 2 * 2


def test_a_gguf_keeps_the_bits_of_its_file_or_has_more(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    model = save(tmp_path, hidden_size=96)
    write_gguf(path, model, "llama", gguf.GGMLQuantizationType.Q8_0)
    count = numbers(model)
    assert count < least_bytes(sizes(path), 4, keep=True) < 2 * count
    assert least_bytes(sizes(path), 4, keep=False) == 4 * count
    assert least_bytes(sizes(path), 1, keep=True) == count


def test_swap_is_read_from_the_system() -> None:
    assert swap() == psutil.swap_memory().total


def test_the_engine_says_so_in_one_line(tmp_path: Path, memory: list[int]) -> None:
    save(tmp_path)
    memory[0] = 1000
    with pytest.raises(ConfigError, match=REFUSED.format(tmp_path)):
        CpuRunner.load(EngineConfig(str(tmp_path), dtype="float32"))


@pytest.mark.parametrize("shards", [1, 2])
def test_files_larger_than_the_memory(tmp_path: Path, shards: int) -> None:
    """Of this machine. The library that maps a single one refuses it; several are mapped one by one."""
    save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    size = 1 << 42 if shards == 1 else (ram() + swap()) // 8 * 6  # of each
    names = ["model.embed_tokens.weight", "model.norm.weight"][:shards]
    files = ["model.safetensors"] if shards == 1 else ["a.safetensors", "b.safetensors"]
    for name, file in zip(names, files, strict=True):
        entry = {name: {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
        header = json.dumps(entry).encode()
        with (tmp_path / file).open("wb") as out:
            out.write(struct.pack("<Q", len(header)) + header)
            out.truncate(8 + len(header) + size)  # a hole, which takes no room on the disk
    if shards > 1:
        index = {"weight_map": dict(zip(names, files, strict=True))}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"^(there is not enough memory for|the weights of) {tmp_path}"):
        CpuRunner.load(EngineConfig(str(tmp_path), dtype="bfloat16"))

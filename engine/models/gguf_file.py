"""A GGUF file as a checkpoint: quantized tensors are dequantized a few megabytes at a time, or kept as they are.

engine.ggufmeta reads the layout of the file; the gguf package knows the quantization formats. llama.cpp stores the
query and key rows of its `llama` and `smollm3` architectures in another order (the two halves of a head interleaved,
for its kind of rotation); reading undoes that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from engine.errors import ModelError
from engine.ggufmeta import Header, TensorInfo, read_header
from engine.models.gguf_blocks import stored_matrix
from engine.models.spec import ModelSpec
from engine.models.spec_gguf import spec_from_gguf
from engine.models.stored import Sizes, Weights, ordered

_PIECE = 1 << 22  # numbers that are read at once: 16 MiB as float32
_LINE = 1 << 12  # numbers of a line; sixteen lines are dequantized at once, which a core's own cache holds

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "rope_freqs.weight",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_INTERLEAVED = ("llama", "smollm3")
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class _Place:
    """One tensor in the file: where its bytes are, and its shape in torch's order (rows of quantized numbers)."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    size: int


class _File:
    """An open GGUF; `data` is the mapped file, byte by byte."""

    def __init__(self, spec: ModelSpec, data: npt.NDArray[np.uint8], places: dict[str, _Place]) -> None:
        self.spec = spec
        self.names = frozenset(places)
        self._data = data
        self._places = places

    @property
    def sizes(self) -> Sizes:
        return [(prod(place.shape), place.size) for place in self._places.values()]

    def demand(self, name: str, shape: tuple[int, ...]) -> None:
        self._find(name, shape)

    def read(self, name: str, out: torch.Tensor) -> None:
        place = self._find(name, tuple(out.shape))
        numbers, at = out.view(-1), 0
        for lines in _lines(self._bytes(place), place.kind):
            try:
                piece = dequantize(lines, place.kind).ravel()
                # float32 needs no dequantizing and comes back as a read-only view of the file.
                piece = piece if piece.flags.writeable else piece.copy()
            except NotImplementedError as error:
                raise ModelError(f"tensor {name} is quantized as {place.kind.name}, which is not supported") from error
            numbers[at : at + len(piece)].copy_(torch.from_numpy(piece))
            at += len(piece)
        if (order := self._order(name)) is not None:
            out.copy_(out[order])

    def stored(self, name: str, shape: tuple[int, int]) -> Weights | None:
        place = self._find(name, shape)
        matrix = stored_matrix(self._bytes(place), place.kind, shape)
        order = self._order(name)
        return matrix if matrix is None or order is None else ordered(matrix, order)

    def _find(self, name: str, shape: tuple[int, ...]) -> _Place:
        place = self._places.get(name)
        if place is None:
            raise ModelError(f"the checkpoint has no tensor {name}")
        if place.shape != shape:
            raise ModelError(f"tensor {name} has shape {place.shape}, but the metadata require {shape}")
        return place

    def _bytes(self, place: _Place) -> npt.NDArray[np.uint8]:
        return self._data[place.start : place.start + place.size]

    def _order(self, name: str) -> torch.Tensor | None:
        """Return which stored row goes where; None if all rows stay where they are stored."""
        if self.spec.architecture not in _INTERLEAVED or not (role := re.search(r"\.([qk])_proj\.", name)):
            return None
        heads = self.spec.heads if role[1] == "q" else self.spec.kv_heads
        rows = torch.arange(heads * self.spec.head_dim)
        return rows.view(heads, -1, 2).transpose(1, 2).flatten()  # [head, pair, half] as stored -> [head, half, pair]


def _lines(data: npt.NDArray[np.uint8], kind: GGMLQuantizationType) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield a tensor's bytes in pieces of equally long lines, so that `dequantize` works on neither too few nor too
    many numbers at a time; then the remainder.
    """
    per_block, block_bytes = GGML_QUANT_SIZES[kind]
    line = _LINE // per_block * block_bytes
    whole, step = len(data) // line * line, _PIECE // _LINE * line
    for at in range(0, whole, step):
        yield data[at : min(at + step, whole)].reshape(-1, line)
    if whole < len(data):
        yield data[whole:].reshape(1, -1)


@contextmanager
def open_gguf(path: Path) -> Iterator[_File]:
    """Map the file and check its directory against its size; raise ModelError if they do not match."""
    header = read_header(path)
    places = _directory(header, path.stat().st_size)
    spec = spec_from_gguf(header.metadata, {info.name: tuple(reversed(info.shape)) for info in header.tensors})
    yield _File(spec, np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray), places)


def _directory(header: Header, file_size: int) -> dict[str, _Place]:
    places: dict[str, _Place] = {}
    for info in header.tensors:
        name = _hf_name(info.name)
        if name in places:
            raise ModelError(f"the GGUF names tensor {info.name} twice")
        places[name] = _placed(info, header.data_start, file_size)
    return places


def _placed(info: TensorInfo, data_start: int, file_size: int) -> _Place:
    try:
        kind = GGMLQuantizationType(info.kind)
    except ValueError as error:
        raise ModelError(f"GGUF tensor {info.name} has the unknown type {info.kind}") from error
    if not info.shape or min(info.shape) < 1:
        raise ModelError(f"GGUF tensor {info.name} has the impossible shape {info.shape}")
    per_block, block_bytes = GGML_QUANT_SIZES[kind]
    if info.shape[0] % per_block:
        raise ModelError(f"GGUF tensor {info.name}: rows of {info.shape[0]} are not whole {kind.name} blocks")
    size = block_bytes
    for extent in (info.shape[0] // per_block, *info.shape[1:]):
        size *= extent
    start = data_start + info.offset
    if start + size > file_size:
        end = start + size
        raise ModelError(
            f"the GGUF file is truncated or its directory is wrong: {info.name} ends at byte {end} of {file_size}"
        )
    return _Place(tuple(reversed(info.shape)), kind, start, size)


def _hf_name(name: str) -> str:
    """Return Hugging Face's name of a tensor; an unknown one keeps its own name, and the decoder refuses it."""
    if name in _WHOLE:
        return _WHOLE[name]
    match = _BLOCK.fullmatch(name)
    if match and match[2] in _IN_BLOCK:
        return f"model.layers.{match[1]}.{_IN_BLOCK[match[2]]}.{match[3]}"
    return name

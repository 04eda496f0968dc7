"""The head of a GGUF file, read without the tensors' data: tokenizer, chat template, sizes, directory.

The `gguf` package builds several NumPy objects for each of a vocabulary's strings: two seconds and 150 MB for 49,152
tokens. The server process needs only the strings, so it reads them itself. The layout is that of the GGUF specification
(github.com/ggml-org/ggml, docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError
from engine.model_files import demand_file

Scalar = int | float | bool | str
Value = Scalar | list["Value"]

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_DEEPEST_ARRAY = 4
_MOST_DIMENSIONS = 4
_LONGEST = 1 << 24  # values of an array, or bytes of a text: a wrong length in a file of gigabytes may fit into it


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the file's tensor directory, as it is in the file and not yet checked.

    shape: sizes, the fastest varying first (the reverse of torch's order). kind: ggml's type number. offset: of the
    first byte, counted from Header.data_start.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensors' data. data_start: the offset in the file at which that data begins, in bytes."""

    metadata: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    data_start: int


def read_metadata(path: Path) -> dict[str, Value]:
    """Return all key-value pairs of the file; raise ModelError if it cannot be read or is damaged."""
    return read_header(path).metadata


def read_header(path: Path) -> Header:
    """Return the key-value pairs and the tensor directory; raise ModelError like read_metadata."""
    demand_file(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data).header()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except (struct.error, ValueError) as error:  # cut short, not UTF-8, or empty, which cannot be mapped
        raise ModelError(f"{path} is no GGUF file, or a damaged one ({error})") from error


_BEYOND = "the metadata ends beyond the end of the file"


class _Cursor:
    """A reading position in the mapped file. Every size is checked against what is left before it is used."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0

    def header(self) -> Header:
        if self._data[:4] != b"GGUF":
            raise ValueError("the file does not begin with GGUF")
        self._at = 4
        version = self._scalar(_U32)
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version} is not supported (2 and 3 are; big-endian files are not)")
        tensors, pairs = int(self._scalar(_U64)), int(self._scalar(_U64))
        self._check(tensors, at_least=24)
        self._check(pairs, at_least=12)
        metadata = dict(self._pair() for _ in range(pairs))
        directory = tuple(self._tensor() for _ in range(tensors))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment}")
        if isinstance(parts := metadata.get("split.count"), int) and parts > 1:
            raise ModelError(f"the file is one of {parts} parts of a model: join them with llama-gguf-split --merge")
        return Header(metadata, directory, -(-self._at // alignment) * alignment)

    def _tensor(self) -> TensorInfo:
        name = self._string()
        dimensions = int(self._scalar(_U32))
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"a tensor has {dimensions} dimensions")
        shape = tuple(int(self._scalar(_U64)) for _ in range(dimensions))
        return TensorInfo(name, shape, kind=int(self._scalar(_U32)), offset=int(self._scalar(_U64)))

    def _pair(self) -> tuple[str, Value]:
        key = self._string()
        return key, self._value(int(self._scalar(_U32)), depth=0)

    def _value(self, kind: int, depth: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(depth + 1)
        if kind not in _SCALARS:
            raise ValueError(f"value type {kind} is not known")
        return self._scalar(_SCALARS[kind])

    def _array(self, depth: int) -> list[Value]:
        kind, count = int(self._scalar(_U32)), int(self._scalar(_U64))
        if depth > _DEEPEST_ARRAY:
            raise ValueError("arrays are nested too deeply")
        if count > _LONGEST:
            raise ValueError(f"an array has {count} values")
        if kind in _SCALARS:
            width = _SCALARS[kind].size
            self._check(count, at_least=width)
            form = struct.Struct(f"<{count}{_SCALARS[kind].format[-1]}")
            values = list(form.unpack_from(self._data, self._at))
            self._at += count * width
            return values
        self._check(count, at_least=8)
        if kind == _STRING:  # a fast path: a vocabulary has a hundred thousand strings
            return [self._string() for _ in range(count)]
        return [self._value(kind, depth) for _ in range(count)]

    def _scalar(self, form: struct.Struct) -> int | float | bool:
        value: int | float | bool = form.unpack_from(self._data, self._at)[0]
        self._at += form.size
        return value

    def _string(self) -> str:
        start = self._at + _U64.size
        self._at = start + _U64.unpack_from(self._data, self._at)[0]
        if self._at > self._size:
            raise ValueError(_BEYOND)
        if self._at - start > _LONGEST:
            raise ValueError(f"a text has {self._at - start} bytes")
        return self._data[start : self._at].decode()

    def _check(self, count: int, at_least: int) -> None:
        """Refuse a count of entries of at least `at_least` bytes each that cannot fit into the rest of the file."""
        if count * at_least > self._size - self._at:
            raise ValueError(_BEYOND)

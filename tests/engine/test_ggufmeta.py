"""Reading a GGUF's metadata: what it says, and refusal of files that are cut short or lie about sizes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from engine.errors import ModelError
from engine.ggufmeta import read_metadata


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A small file of the reference package."""
    path = tmp_path / "small.gguf"
    writer = GGUFWriter(str(path), "llama")
    writer.add_uint32("llama.context_length", 128)
    writer.add_float32("llama.eps", 0.5)
    writer.add_bool("yes", True)
    writer.add_int8("negative", -3)
    writer.add_string("text", "größer 😀")
    writer.add_array("words", ["a", "", "Ġb"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_tensor("weight", np.zeros((4, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_all_types_come_back(written: Path) -> None:
    metadata = read_metadata(written)
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.context_length"] == 128
    assert metadata["llama.eps"] == 0.5
    assert metadata["yes"] is True
    assert metadata["negative"] == -3
    assert metadata["text"] == "größer 😀"
    assert metadata["words"] == ["a", "", "Ġb"]
    assert metadata["numbers"] == [1, -2, 3]
    assert metadata["nested"] == [[1, 2], [3]]


def test_a_file_cut_anywhere_is_refused(written: Path, tmp_path: Path) -> None:
    data = written.read_bytes()
    metadata_end = data.index(b"weight")
    cut = tmp_path / "cut.gguf"
    for length in range(metadata_end):
        cut.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_metadata(cut)


def gguf(*, version: int = 3, pairs: int = 1, body: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, pairs) + body


def key(name: bytes, kind: int) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 not a model at all, but long enough to hold a header",
        gguf(version=1),
        gguf(version=3 << 24),  # big-endian
        gguf(pairs=1 << 60),
        gguf(body=key(b"a", 99) + b"\0" * 8),
        gguf(body=struct.pack("<Q", 1 << 62) + b"a"),
        gguf(body=key(b"\xff\xfe", 0) + b"\0"),
        gguf(body=key(b"a", 8) + struct.pack("<Q", 1 << 40)),
        gguf(body=key(b"a", 9) + struct.pack("<IQ", 5, 1 << 61)),
        gguf(body=key(b"a", 9) + struct.pack("<IQ", 8, 1 << 61)),
        gguf(body=key(b"a", 9) + struct.pack("<IQ", 9, 1) * 50),
    ],
)
def test_lies_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "lying.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError):
        read_metadata(path)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (key(b"a", 9) + struct.pack("<IQ", 0, (1 << 24) + 1), "an array has 16777217 values"),
        (key(b"a", 8) + struct.pack("<Q", (1 << 24) + 1), "a text has 16777217 bytes"),
        (key(b"a", 0) + b"\0" + struct.pack("<Q1sI", 1, b"t", 1 << 21), "a tensor has 2097152 dimensions"),
    ],
)
def test_lengths_that_fit_into_a_large_file_are_refused(tmp_path: Path, body: bytes, said: str) -> None:
    path = tmp_path / "large.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + body)
    os.truncate(path, 1 << 26)
    with pytest.raises(ModelError, match=said):
        read_metadata(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf cannot be read"):
        read_metadata(tmp_path / "none.gguf")

"""The default model in the files that its peers load, made once from its GGUF: the same weights, rounded again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import gguf
from filelock import FileLock
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType

from nproxy import models
from tests.real.processes import ROOT

BUILT = ROOT / "build" / "bench"
Kind = Literal["BF16", "F16", "Q8_0", "Q4_1"]
_FILE_TYPES = {"BF16": "MOSTLY_BF16", "F16": "MOSTLY_F16", "Q8_0": "MOSTLY_Q8_0"}


def packed() -> Path:
    """Return the default model's file as nproxy serves it."""
    return models.fetch(models.DEFAULT)


def as_gguf(kind: Kind) -> Path:
    """Return the model as a GGUF with matrices of this kind and float vectors; for Q4_1 the original file."""
    source = packed()
    if kind == "Q4_1":
        return source
    file = BUILT / f"{source.name.partition('.')[0]}-{kind}.gguf"
    BUILT.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock"):
        if not file.exists():
            unfinished = file.with_suffix(".unfinished")
            _write(source, unfinished, kind)
            unfinished.rename(file)
    return file


def _write(source: Path, target: Path, kind: Kind) -> None:
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    writer.add_file_type(LlamaFileType[_FILE_TYPES[kind]])
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        kept = GGMLQuantizationType[kind] if values.ndim > 1 else GGMLQuantizationType.F32
        data = gguf.quantize(values, kept)
        writer.add_tensor(tensor.name, data, raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    for kind in sys.argv[1:]:
        print(as_gguf(kind))  # type: ignore[arg-type] # a wrong word has no file type

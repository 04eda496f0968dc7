"""The kernels in C, compiled by the machine's own compiler when an engine first starts, and kept for the next start."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch

from engine.errors import ConfigError

_log = logging.getLogger(__name__)
_SOURCE = Path(__file__).parent / "c" / "kernels.c"  # includes the other files of the folder
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared")
_THREADS = "-fopenmp"  # runs on torch's own thread library, which has the same name; not every compiler has it
_ELEMENTS = {torch.float32: (), torch.bfloat16: ("-DBFLOAT16",)}
_COMPILERS = ("gcc", "clang")
_TELLING = ("model name", "flags", "Features", "CPU part")  # lines of /proc/cpuinfo that identify the processor
_SECONDS = 120  # the most that a compiler may take; it takes two or three

LANES = 16
MOST_DIM, MOST_GROUP = 256, 48
ELEMENTS, HALVES, INT8, NIBBLES, BYTES = range(5)
NIBBLES_GROUP = 32
"""These constants are as in C. LANES: widths are multiples of the widest processor's lanes. MOST_DIM, MOST_GROUP: the
widest heads, and the most of a token's queries that share a key. The next five: what a matrix is made of.
NIBBLES_GROUP: inputs that share a scale in every format of four bits.
"""


class KvLayer(Structure):
    """struct kv_layer"""

    _fields_ = (
        ("pool", c_void_p),
        ("slots", c_int64),
        ("block_size", c_int64),
        ("kv_heads", c_int64),
        ("group", c_int64),
        ("dim", c_int64),
        ("scale", c_float),
    )


class Work(Structure):
    """struct work"""

    _fields_ = (
        ("count", c_int64),
        ("items", c_void_p),
        ("members", c_void_p),
        ("seen", c_void_p),
        ("blocks", c_void_p),
        ("first_place", c_void_p),
        ("places", c_void_p),
        ("values", c_void_p),
        ("weights", c_void_p),
        ("tops", c_void_p),
    )


class Matrix(Structure):
    """struct matrix"""

    _fields_ = (
        ("panels", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("kind", c_int64),
        ("group", c_int64),
    )


class DecoderLayer(Structure):
    """struct decoder_layer"""

    _fields_ = (
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("qkv", Matrix),
        ("output", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("kv", POINTER(KvLayer)),
        ("rotated", c_int64),
    )


class Scratch(Structure):
    """struct scratch"""

    _fields_ = (
        ("normed", c_void_p),
        ("added", c_void_p),
        ("wide", c_void_p),
        ("narrow", c_void_p),
        ("more", c_void_p),
    )


class Timings(Structure):
    """struct timings"""

    _fields_ = (("products", c_double), ("attention", c_double), ("rest", c_double))


_at, _count, _number = c_void_p, c_int64, c_float
SIGNATURES: dict[str, list[Any]] = {
    "norm": [_at, _at, _at, _number, _at, _count, _count],
    "silu_mul": [_at, _at, _count, _count],
    "rotate_store": [_at, _at, _at, _number, _at, _at, _at, _count, _count, _count, _count, _count],
    "attention": [POINTER(KvLayer), POINTER(Work), _at, _count, _at, _count],
    "exponentials": [_at, _at, _at, _count, _count, _count],
    "draws": [_at, _count, _at, _at, _at, _count, _count],
    "log_probabilities": [_at, _count, _at, _at, _at, _at, _at, _count, _count, _count],
    "product": [_at, POINTER(Matrix), _at, _at, _count],
    "layers": [
        *(POINTER(DecoderLayer), POINTER(c_void_p), _count, _number),
        *(_at, _at, _at, POINTER(Scratch), _count, _at, _count, POINTER(Timings)),
    ],
}


class Kernels:
    """The functions in C for one type of element; they check nothing, so callers must.

    wide: whether to use `product` for matrices of elements. paired: whether it then uses the processor's own products
    of bfloat16, of two inputs that are stored together. panel: how many outputs are stored together in every matrix.
    together: how many inputs are stored together in int8 matrices, to whose weights `added` is added; 0 if int8 is not
    supported. narrow: whether matrices with fewer bits than elements have are supported. queries: how many queries read
    a key together, MOST_GROUP or more. refused_amx: whether the kernels know AMX and the system does not let this
    process use it; if it does, `amx_granted` is not 0. timings: of the calls of `layers` so far.
    """

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        self.dtype = dtype
        library = ctypes.CDLL(str(path))
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        self.norm = library.norm
        self.silu_mul = library.silu_mul
        self.rotate_store = library.rotate_store
        self.attention = library.attention
        self.exponentials = library.exponentials
        self.draws = library.draws
        self.log_probabilities = library.log_probabilities
        self.product = library.product
        self.layers = library.layers
        self.wide = bool(_constant(library, "knows_wide"))
        self.paired = bool(_constant(library, "elements_paired"))
        self.panel = _constant(library, "panel_outputs")
        self.together = _constant(library, "inputs_together")
        self.added = _constant(library, "weights_added")
        self.narrow = self.wide and bool(_constant(library, "knows_narrow"))
        self.queries = _constant(library, "most_queries")
        self.amx_granted = c_int.in_dll(library, "amx_granted")
        self.refused_amx = bool(_constant(library, "knows_amx")) and not self.amx_granted.value
        self.timings = Timings()


def _constant(library: ctypes.CDLL, name: str) -> int:
    return c_int.in_dll(library, name).value


def compiler() -> list[str] | None:
    """Return the C compiler's command: the value of CC, or the first of the usual ones that exists; None if there is
    none.

    Raises ValueError for a CC that no shell would accept.
    """
    if named := shlex.split(os.environ.get("CC", "")):
        return named
    return next(([found] for name in _COMPILERS if (found := shutil.which(name))), None)


@cache
def load_kernels(dtype: torch.dtype) -> Kernels:
    """Load the kernels; compile them first, unless that was done before for this source, compiler and processor.

    Raises ConfigError, with the compiler's own message, if that fails or the dtype is neither float32 nor bfloat16.
    """
    if dtype not in _ELEMENTS:
        raise ConfigError(f"kernels is native, which supports only float32 and bfloat16, not {str(dtype)[6:]}")
    try:
        kernels = _loaded(dtype)
    except (OSError, ValueError, AttributeError, subprocess.SubprocessError) as error:
        raise ConfigError(f"kernels is native, and they cannot be built: {error}") from error
    if kernels.refused_amx and kernels.paired:
        _log.warning("the processor has AMX, but Linux does not let this process use it; the engine is slower without")
    return kernels


def _loaded(dtype: torch.dtype) -> Kernels:
    cc = compiler()
    if cc is None:
        raise ConfigError("kernels is native, and there is no C compiler: install gcc, or set CC")
    if shutil.which(cc[0]) is None:
        raise ConfigError(f"kernels is native, and CC names a compiler that does not exist: {cc[0]}")
    command = [*cc, *_FLAGS, *_ELEMENTS[dtype]]
    name = f"{_SOURCE.stem}-{_key(cc, command)}.so"
    if (folder := _cache()) is not None:
        with suppress(OSError, AttributeError):  # it does not exist yet, or is damaged
            return Kernels(folder / name, dtype)
        with suppress(OSError):  # files there may not be executed
            if _compile([*command, _THREADS], folder / name) is None:
                return Kernels(folder / name, dtype)
    # For this process alone: a loaded library's file may be removed. The next process tries again.
    with tempfile.TemporaryDirectory(prefix="nproxy-kernels-") as alone:
        path = Path(alone) / name
        if refusal := _compile([*command, _THREADS], path):
            if other := _compile(command, path):
                raise ConfigError(f"kernels is native, and {cc[0]} cannot compile them: {other}")
            _log.warning("kernels run on one thread each, because %s does not support %s: %s", cc[0], _THREADS, refusal)
        return Kernels(path, dtype)


def _cache() -> Path | None:
    """Return the folder for compiled kernels, among the user's other caches.

    None if it is not writable, or if others can write to it, because its files are executed.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nproxy" / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = folder.stat()
    except (OSError, RuntimeError):  # RuntimeError if the user has no home, as in a container
        return None
    ours = seen.st_uid == os.geteuid() and not seen.st_mode & 0o022
    return folder if ours and os.access(folder, os.W_OK | os.X_OK) else None


def _key(cc: list[str], command: list[str]) -> str:
    """Return a name for what a command makes of the source: -march=native means something else on another processor."""
    printed = subprocess.run([*cc, "--version"], capture_output=True, timeout=_SECONDS, check=False)
    sources = [path.read_bytes() for path in sorted(_SOURCE.parent.glob("*.[ch]"))]
    parts = [*sources, repr(command).encode(), printed.stdout, _processor().encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(_TELLING)}))


def _compile(command: list[str], path: Path) -> str | None:
    """Compile to a path; return the compiler's first message if it failed, None if it did not."""
    began = time.perf_counter()
    # Built beside it and renamed, so that no other engine that starts meanwhile loads an incomplete file.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        argv = [*command, "-o", str(made), str(_SOURCE), "-lm"]
        ran = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
        if ran.returncode:
            return (ran.stderr.strip().splitlines() or [f"status {ran.returncode}"])[0]
        made.replace(path)
    _log.info("kernels were compiled for this processor in %.1f s: %s", time.perf_counter() - began, path)
    return None

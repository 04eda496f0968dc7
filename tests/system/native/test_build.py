"""Compiling: once per source, compiler and processor; by several processes at once; clear errors and fallbacks."""

from __future__ import annotations

import logging
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.native import build
from engine.native.backend import compiled
from tests.real.processes import ROOT

LOADS = "import torch; from engine.native.build import load_kernels; load_kernels(torch.float32)"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compile cache of its own, which is new to this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "load_kernels", build.load_kernels.__wrapped__)
    monkeypatch.setattr("engine.native.backend.load_kernels", build.load_kernels)
    return tmp_path / "nproxy" / "kernels"


def wrapper(folder: Path, text: str) -> str:
    """Return the command of a compiler that is a script; $CC in the script is the real compiler."""
    script = folder / "compiler"
    script.write_text(f"#!/bin/sh\nCC='{' '.join(build.compiler() or [])}'\n{text}\n")
    script.chmod(0o755)
    return str(script)


def test_what_was_compiled_is_kept(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        build.load_kernels(torch.float32)
        first = list(cache.iterdir())
        build.load_kernels(torch.float32)
        assert list(cache.iterdir()) == first
        assert [record.message.partition(" in ")[0] for record in caplog.records] == [
            "kernels were compiled for this processor"
        ]
        assert stat.S_IMODE(cache.stat().st_mode) == 0o700, "what is loaded from there runs: nobody else writes there"
        build.load_kernels(torch.bfloat16)
        assert len(list(cache.iterdir())) == 2


def test_another_source_compiler_or_processor_is_compiled_anew(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.load_kernels(torch.float32)
    copy = Path(shutil.copytree(build._SOURCE.parent, tmp_path / "c"))
    with (copy / "matrix.h").open("a", encoding="utf-8") as part:
        part.write("\n")
    monkeypatch.setattr(build, "_SOURCE", copy / build._SOURCE.name)
    build.load_kernels(torch.float32)
    monkeypatch.setattr(build, "_processor", lambda: "another")
    build.load_kernels(torch.float32)
    monkeypatch.setenv("CC", wrapper(tmp_path, 'exec $CC "$@"'))
    build.load_kernels(torch.float32)
    assert len(list(cache.iterdir())) == 4


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a compiler knows the processors of its own family")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("processor", "pairs"),
    [
        ("x86-64-v2", False),
        ("znver3", False),
        ("knl", False),
        ("skylake-avx512", False),
        ("icelake-server", False),
        ("cooperlake", True),
        ("sapphirerapids", True),  # it has AMX too
    ],
)
def test_every_family_of_processors_is_compiled_for(
    tmp_path: Path, processor: str, pairs: bool, dtype: torch.dtype
) -> None:
    """Any one machine can run only a few of them, so they are only compiled."""
    flags = [flag for flag in build._FLAGS if flag != "-march=native"]
    command = [*(build.compiler() or []), *flags, f"-march={processor}", *build._ELEMENTS[dtype], "-Wall", "-Werror"]
    made = tmp_path / "kernels.so"
    assert build._compile([*command, build._THREADS], made) is None
    assert build.Kernels(made, dtype).paired == (pairs and dtype == torch.bfloat16)


@pytest.mark.parametrize("refused", [False, True])
def test_a_system_that_refuses_amx_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: bool
) -> None:
    kernels = build._loaded(torch.float32)
    monkeypatch.setattr(kernels, "refused_amx", refused)
    monkeypatch.setattr(kernels, "paired", True)
    monkeypatch.setattr(build, "_loaded", lambda dtype: kernels)
    assert build.load_kernels(torch.float32) is kernels
    assert ("Linux does not let this process use it" in caplog.text) == refused


def test_several_at_once(cache: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", LOADS], cwd=ROOT) for _ in range(4)]
    assert [process.wait(100) for process in processes] == [0] * 4
    assert len(list(cache.iterdir())) == 1, "and nothing half made is left"


def works(native: build.Kernels) -> None:
    gate_up, out = torch.ones(1, 32), torch.empty(1, 16)
    native.silu_mul(gate_up.data_ptr(), out.data_ptr(), 1, 16)
    torch.testing.assert_close(out, torch.full((1, 16), 0.7310586))


def test_a_compiler_without_threads_will_do(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its kernels are for this process only and not kept, so that a better compiler is used once there is one."""
    text = 'for word; do [ "$word" = -fopenmp ] && echo "no such option" >&2 && exit 1; done; exec $CC "$@"'
    script = wrapper(tmp_path, text)
    whole = Path(script).read_text().replace(text, 'exec $CC "$@"')
    monkeypatch.setenv("CC", script)
    works(build.load_kernels(torch.float32))
    assert "kernels run on one thread each" in caplog.text
    assert "does not support -fopenmp: no such option" in caplog.text
    assert not list(cache.iterdir())
    Path(script).write_text(whole)
    works(build.load_kernels(torch.float32))
    assert len(list(cache.iterdir())) == 1


def test_a_damaged_file_is_made_anew(cache: Path) -> None:
    """Each start is a process of its own, since a process loads a library of the same name only once."""
    for damage in (None, b"", b"rubbish"):
        if damage is not None:
            (kept,) = cache.iterdir()
            kept.write_bytes(damage)
        subprocess.run([sys.executable, "-c", LOADS], cwd=ROOT, check=True, timeout=60)
        (kept,) = cache.iterdir()
        assert kept.read_bytes()[:4] == b"\x7fELF"


def test_what_somebody_else_could_write_is_not_run(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o770)
    works(build.load_kernels(torch.float32))
    assert not list(cache.iterdir())


@pytest.mark.parametrize(("cc", "said"), [("'gcc", "No closing quotation"), ("SCRIPT", "Exec format error")])
def test_a_cc_that_is_none(
    cc: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = tmp_path / "compiler"
    script.write_text("no script at all")
    script.chmod(0o755)
    monkeypatch.setenv("CC", cc.replace("SCRIPT", str(script)))
    assert compiled(EngineConfig("m"), torch.float32) is None
    assert said in caplog.text


def test_a_blank_cc_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    found = build.compiler()
    monkeypatch.setenv("CC", "  ")
    assert build.compiler() == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo 'kernels.c:7: error: no' >&2; exit 1", "cannot compile them: kernels.c:7: error: no"),
        ("exit 3", "cannot compile them: status 3"),
        ('while [ "$1" != -o ]; do shift; done; echo rubbish > "$2"', "they cannot be built"),
    ],
)
def test_a_compiler_that_fails(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error if the kernels were requested by name; otherwise torch's are used, and the log says why."""
    monkeypatch.setenv("CC", wrapper(tmp_path, text))
    with pytest.raises(ConfigError, match=said):
        compiled(EngineConfig("m", kernels="native"), torch.float32)
    assert compiled(EngineConfig("m"), torch.float32) is None
    assert said in caplog.text
    assert "torch's kernels are used instead, which are slower" in caplog.text


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="nowhere"):
        build.load_kernels(torch.float32)
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no C compiler: install gcc"):
        build.load_kernels(torch.float32)


def test_a_dtype_that_the_kernels_do_not_know() -> None:
    with pytest.raises(ConfigError, match="only float32 and bfloat16, not float16"):
        build.load_kernels(torch.float16)


def test_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache's place is taken by a file: the kernels are made for this process alone."""
    (tmp_path / "nproxy").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    works(build.load_kernels(torch.float32))
    assert not list((tmp_path / "temporary").iterdir()), "what is loaded need not lie there any more"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="they cannot be built"):
        build.load_kernels(torch.float32)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    build.load_kernels(torch.float32)

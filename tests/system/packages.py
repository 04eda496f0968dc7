"""Pinned packages in a folder of their own, for programs that must not use nproxy's environment.

`python -m tests.system.packages NAME...` installs them ahead of a test run, as tests/system/install.sh does.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from tests.real.processes import ROOT


def installed(name: str) -> Path:
    """Install what requirements/NAME.txt lists into .venvs/NAME, once per state of the list; returns that folder.

    The folder goes into PYTHONPATH, before the running environment, which has everything else that the packages need.
    """
    requirements = ROOT / "requirements" / f"{name}.txt"
    folder = ROOT / ".venvs" / name
    stamp = folder / "requirements.sha256"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # several test processes may need it at once
        if not stamp.exists() or stamp.read_text() != digest:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder)]
            subprocess.run([*pip, "-r", str(requirements)], check=True)
            stamp.write_text(digest)
    return folder


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(installed(name))

"""systemd's own check of the unit file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.real.processes import ROOT
from tests.system.tools import needed

FOLDER = ROOT / ".venvs" / "systemd"
UNIT = ROOT / "deploy" / "systemd" / "nproxy.service"


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """systemd ignores what it does not understand, and says so."""
    assert verified(tmp_path, UNIT.read_text()) == ""
    assert "ignoring: mixt" in verified(tmp_path, UNIT.read_text().replace("KillMode=mixed", "KillMode=mixt"))


def verified(folder: Path, unit: str) -> str:
    """Return systemd's messages about a unit; its libraries and the units it names come from the same folder."""
    here = folder / "nproxy.service"
    here.write_text(unit.replace("/opt/nproxy/bin/nproxy", "/bin/true"))
    libraries = [*FOLDER.glob("usr/lib/*/systemd"), *FOLDER.glob("usr/lib/*-linux-*")]
    units = [folder for folder in (FOLDER / "lib/systemd/system", FOLDER / "usr/lib/systemd/system") if folder.is_dir()]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "SYSTEMD_UNIT_PATH": ":".join(map(str, units)),
    }
    argv = [needed(FOLDER / "usr" / "bin" / "systemd-analyze"), "verify", str(here)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment)
    return done.stdout + done.stderr

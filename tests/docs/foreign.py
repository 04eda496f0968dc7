"""Other projects' programs that the pages name, and stand-ins for them while the pages' commands are tested.

Each stand-in is a small program of the same name that comes first in PATH. A server that it would start is running
already, as a scripted one, at the port that replaces the page's port.
"""

from __future__ import annotations

from pathlib import Path

SERVERS = ("ollama", "llama-server", "vllm", "mlx_lm.server", "transformers")
"""These start a server: a scripted server of their kind listens already."""

INSTALLERS = ("systemctl", "sudo")
"""These change the machine, so they are not run."""

OTHERS = ("lm_eval",)
"""These need files from elsewhere, such as the questions of lm_eval's tasks."""

CHECKED = ("pip", "cp")
"""These change the machine too: only their arguments are checked. nproxy is installed already."""

STAND_INS = (*SERVERS, *INSTALLERS, *OTHERS, *CHECKED)

_NOTHING = "exit 0\n"

# `nproxy serve` goes to the background once it listens, so that the next line can use it; a second one replaces the
# first. Bash tests the port at almost no cost; a client started every 50 ms would take half a core from the start that
# it waits for. A process that has ended counts as gone even if init reaps it only seconds later, as in some containers.
_NPROXY = """\
if [ "$1" != serve ]; then exec "$PYTHON" -P -m nproxy "$@"; fi
if [ -e "$NOTES/serving" ]; then
  pid=$(cat "$NOTES/serving"); kill "$pid"
  until state=$(ps -o state= -p "$pid"); [[ -z $state || $state = Z* ]]; do /bin/sleep 0.02; done
fi
"$PYTHON" -P -m nproxy "$@" > "$NOTES/serve.log" 2>&1 < /dev/null &
echo $! > "$NOTES/serving"
until (exec 3<> "/dev/tcp/127.0.0.1/$NPROXY_LISTEN__PORT") 2> /dev/null; do
  kill -0 $! || { cat "$NOTES/serve.log"; exit 1; }
  /bin/sleep 0.05
done
"""

# A dry run of make checks the targets. The engine with the default model runs already.
_MAKE = 'command -p make -C "$ROOT" -n "$@" > /dev/null\n'

# The engine's options are parsed, except for the model, a word in capitals; tests/real runs the engine.
_ENGINE = """\
words='import sys; from engine.options import parse_arguments; parse_arguments(sys.argv[1:])'
case "$*" in
  "-m engine "*) shift 2; exec "$PYTHON" -P -c "$words" "$@" ;;
  "-m llama_cpp.server "* | "-m sglang.launch_server "*) exit 0 ;;
  *) exec "$PYTHON" -P "$@" ;;
esac
"""

# Of commands for root, only copying is checked.
_SUDO = 'case "$1" in cp) exec "$@" ;; esac\n'

# The source of a copy must exist.
_CP = 'test -e "$ROOT/$1"\n'

# Extras must exist, and packages must be among those that the tests install.
_PIP = """\
words='import sys; from tests.docs.mentions import wrong_pip; sys.exit(wrong_pip(sys.argv[1:]))'
exec "$PYTHON" -P -c "$words" "$@"
"""

# An endless loop runs once: the second sleep fails.
_SLEEP = 'test ! -e "$NOTES/slept" && touch "$NOTES/slept" || { rm "$NOTES/slept"; exit 1; }\n'


def put(folder: Path) -> None:
    """Write all stand-ins into a folder, which must come first in PATH."""
    own = {
        "nproxy": _NPROXY,
        "make": _MAKE,
        "python": _ENGINE,
        "python3": _ENGINE,
        "sleep": _SLEEP,
        "cp": _CP,
        "sudo": _SUDO,
        "pip": _PIP,
    }
    programs = {**dict.fromkeys(STAND_INS, _NOTHING), **own}
    for name, text in programs.items():
        file = folder / name
        file.write_text(f"#!/usr/bin/env bash\n{text}")
        file.chmod(0o755)

"""Other people's programs that the pages name, and what stands in for each while its commands are tested.

Each is a small program of its name that is found first. A server that it would start is there already, scripted, at
the port that the page's port is changed to.
"""

from __future__ import annotations

from pathlib import Path

SERVERS = ("ollama", "llama-server", "vllm", "mlx_lm.server", "transformers")
"""Start a server: a scripted one of their kind listens already."""

INSTALLERS = ("systemctl", "sudo")
"""Change the machine, so they are not run."""

OTHERS = ("lm_eval",)
"""Need files from elsewhere, such as lm_eval its tasks' questions."""

CHECKED = ("pip", "cp")
"""Change the machine as well: only their words are read. nproxy is installed already."""

STAND_INS = (*SERVERS, *INSTALLERS, *OTHERS, *CHECKED)

_NOTHING = "exit 0\n"

# nproxy serve goes on when it listens, so that the next line can ask it; another takes its place. Bash looks for a port
# that listens at no cost; a client, started every 50 ms, takes half as much of a core as the start that it waits for.
# Who has ended is gone, though the system's first process may notice it only seconds later, as in some containers.
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

# What make would do is asked of make. The engine with the default model runs already.
_MAKE = 'command -p make -C "$ROOT" -n "$@" > /dev/null\n'

# Its words are read as it would, but for the model, which is a word in capitals; what follows is in tests/real.
_ENGINE = """\
words='import sys; from engine.options import read_words; read_words(sys.argv[1:])'
case "$*" in
  "-m engine "*) shift 2; exec "$PYTHON" -P -c "$words" "$@" ;;
  "-m llama_cpp.server "*) exit 0 ;;
  *) exec "$PYTHON" -P "$@" ;;
esac
"""

# Of what root would do, only the words of copying are read.
_SUDO = 'case "$1" in cp) exec "$@" ;; esac\n'

# What is copied is there.
_CP = 'test -e "$ROOT/$1"\n'

# Extras are there, and packages are those that tests install.
_PIP = """\
words='import sys; from tests.docs.mentions import wrong_pip; sys.exit(wrong_pip(sys.argv[1:]))'
exec "$PYTHON" -P -c "$words" "$@"
"""

# An endless loop goes round once.
_SLEEP = 'test ! -e "$NOTES/slept" && touch "$NOTES/slept" || { rm "$NOTES/slept"; exit 1; }\n'


def put(folder: Path) -> None:
    """Write all of them into a folder, which belongs at the front of PATH."""
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

"""Runs programs in one process, each as if by itself: python tests/real/one_after_another.py PROGRAM ...

Prints what each has printed, as JSON by its name. The OpenAI client, which all of them import, takes a second to load.
"""

from __future__ import annotations

import io
import json
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

printed = {}
for program in sys.argv[1:]:
    with redirect_stdout(io.StringIO()) as out:
        sys.argv = [program]
        runpy.run_path(program, run_name="__main__")
    printed[Path(program).stem] = out.getvalue()
json.dump(printed, sys.stdout)

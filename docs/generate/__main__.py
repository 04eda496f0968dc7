"""Write the generated pages, or report which are stale.

python -m docs.generate [--check]
"""

from __future__ import annotations

import sys

from docs.generate.pages import DOCS, PAGES, stale


def main(check: bool) -> int:
    """Write stale pages, or with `check` only report them. Returns the exit code: 1 if `check` finds a stale page."""
    for name in stale():
        if not check:
            (DOCS / name).parent.mkdir(exist_ok=True)
            (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"docs/{name} {'is stale: make docs' if check else 'written'}")
    return int(check and bool(stale()))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))

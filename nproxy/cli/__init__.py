"""The command `nproxy`: `commands` puts all of them together, each with its options in a module that imports little.

Exit codes: 0 fine, 1 failed, 2 wrong use or config. Each command's module is imported when it runs, so
that `nproxy check` waits for no server library and nothing here ever imports torch.
"""

from nproxy.cli.commands import main

__all__ = ["main"]

"""The command `nproxy`: `commands` puts all of them together, each with its options in a module that imports little.

Exit codes: 0 fine, 1 failed, 2 wrong use or config, 130 stopped by Ctrl-C. Each command's module is imported when it
runs, so that `nproxy check` waits for no server library and nothing here ever imports torch. What several share:
`typed` options, the `target` they ask and its `model_list`, `direct` for a client, `reasons` why there was no answer,
`printable` words, `standard_streams`.
"""

from nproxy.cli.commands import main

__all__ = ["main"]

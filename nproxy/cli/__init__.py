"""The command `nproxy`: `commands` assembles the subcommands, each with its options in a module with few imports.

Exit codes: 0 success, 1 failure, 2 wrong use or config, 130 stopped by Ctrl-C. Each command's implementation is
imported only when it runs, so that `nproxy check` does not wait for server libraries; nothing here ever imports torch.
Several commands share: the options in `typed`, the `target` server and its `model_list`, `direct` for an HTTP client,
`reasons` for missing answers, `printable` for foreign text, and `standard_streams`.
"""

from nproxy.cli.commands import main

__all__ = ["main"]

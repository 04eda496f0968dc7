"""What a user got wrong, and the exit codes of all commands."""

from __future__ import annotations

FAILED, WRONG_USE = 1, 2
STOPPED = 130
"""By Ctrl-C: what shells say of a process that SIGINT ended."""


class WrongUse(Exception):
    """What was asked for cannot be done; the message is one line for the user, and holds no key."""

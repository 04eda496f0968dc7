"""Errors in what the user asked for, and the exit codes of all commands."""

from __future__ import annotations

FAILED, WRONG_USE = 1, 2
STOPPED = 130
"""Stopped by Ctrl-C: the code that shells report for a process that SIGINT ended."""


class WrongUse(Exception):
    """What was asked for cannot be done; the message is one line for the user, and contains no key."""

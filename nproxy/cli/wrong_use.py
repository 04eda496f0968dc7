"""What a user got wrong."""

from __future__ import annotations


class WrongUse(Exception):
    """What was asked for cannot be done; the message is one line for the user, and holds no key."""

"""Errors of a server."""

from __future__ import annotations


class ChatFailed(Exception):
    """There is no answer, or not a complete one; the message is one line for the user, and contains no key."""

"""What a server failed at."""

from __future__ import annotations


class ChatFailed(Exception):
    """There is no answer, or not a whole one; the message is one line for the user, and holds no key."""

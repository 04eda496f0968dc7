"""Why there is no report, or none on disk."""

from __future__ import annotations


class BenchFailed(Exception):
    """Nothing can be measured, or not be saved; the message is one line for the user, and holds no key."""

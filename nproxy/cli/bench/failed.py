"""Errors for which there is no report, or none in a file."""

from __future__ import annotations


class BenchFailed(Exception):
    """Nothing can be measured, or the report cannot be saved; the message is one line for the user, without a key."""

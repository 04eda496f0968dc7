"""What the commands' words have in common."""

from __future__ import annotations

import argparse


def numbers(text: str) -> tuple[int, ...]:
    """Numbers above 0 with commas between them; raises ArgumentTypeError for others."""
    try:
        read = tuple(int(word) for word in text.split(","))
    except ValueError:
        read = ()
    if not read or min(read) < 1:
        raise argparse.ArgumentTypeError(f"must be numbers above 0 with commas between them, not {text}")
    return read

"""Whether a gateway accepts a key."""

from __future__ import annotations

from datetime import UTC, datetime

from nproxy.config import Key


def state_of(key: Key) -> str:
    """Return whether a gateway accepts the key now: valid, disabled or expired."""
    if key.disabled:
        return "disabled"
    return "expired" if key.expires is not None and key.expires <= datetime.now(UTC) else "valid"

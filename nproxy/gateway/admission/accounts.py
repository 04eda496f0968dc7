"""The accounts of the known keys. An account is kept as long as it holds anything that matters later."""

from __future__ import annotations

from collections.abc import Callable

from nproxy.gateway.admission.claims import Account
from nproxy.gateway.admission.messages import Ask

MOST_KEYS = 65_536
"""The most keys that are remembered. Without `auth`, clients can invent any number of keys."""
LEAST_SWEEP = 1024
"""With fewer keys, it is not worth searching for accounts that can be dropped."""


class Accounts:
    """The accounts by key. forgets: whether the queue, too, needs no account of a key without waiting requests."""

    def __init__(self, forgets: Callable[[Account], bool]) -> None:
        self.by_key: dict[str, Account] = {}  # oldest first
        self._forgets = forgets
        self._sweep_at = LEAST_SWEEP

    def of(self, ask: Ask, now: float) -> Account:
        """Return the account that a request is counted in; create it if its key has none."""
        account = self.by_key.get(ask.key)
        if account is None:
            if len(self.by_key) >= self._sweep_at:
                self._sweep(now)
            account = self.by_key[ask.key] = Account()
        account.weight, account.most = ask.weight, ask.most
        return account

    def _sweep(self, now: float) -> None:
        """Drop the accounts that hold nothing of use. If there are still too many, drop the oldest idle ones."""
        idle = [key for key, account in self.by_key.items() if not account.inflight and not account.claims]
        kept: list[str] = []
        for key in idle:
            account = self.by_key[key]
            if self._forgets(account) and account.meters.full(now):
                del self.by_key[key]
            else:
                kept.append(key)
        if len(self.by_key) >= MOST_KEYS:
            for key in kept[: MOST_KEYS // 8]:
                del self.by_key[key]
        self._sweep_at = max(LEAST_SWEEP, min(2 * len(self.by_key), MOST_KEYS))

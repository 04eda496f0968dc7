"""Who calls: the name and the limits of a key."""

from __future__ import annotations

from nproxy.openai.frozen import frozen


@frozen
class Rates:
    """Most requests, choices and tokens a minute; None for any number."""

    requests: int | None = None
    choices: int | None = None
    tokens: int | None = None


UNLIMITED = Rates()


@frozen
class Caller:
    """One who is known by a key.

    name: from the keys' file, never what was sent; a label of metrics. bucket: under what its limits are counted; the
    name, or where nobody is named, something that tells credentials apart and does not give them away. weight: its
    share of what is free, against the others that wait. choices: most of its choices in flight, None for the
    configuration's. models: those that it may use, None for all.
    """

    name: str
    bucket: str
    weight: float = 1.0
    choices: int | None = None
    rates: Rates = UNLIMITED
    models: frozenset[str] | None = None

    def may_use(self, model: str) -> bool:
        """Whether the key is for this model, by the name that clients use."""
        return self.models is None or model in self.models


ANYBODY = Caller(name="", bucket="")
"""Who calls a gateway without keys of its own, and shows nothing."""

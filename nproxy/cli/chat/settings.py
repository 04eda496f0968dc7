"""The fields of a chat's requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nproxy.openai.jsonvalue import JSON

Message = dict[str, JSON]

DEFAULT_URL = "http://127.0.0.1:8000/v1"
"""Where `nproxy serve` listens by default."""
WIDEST = 512
"""The largest n that nproxy can be configured to accept (`n_policy.max_n`)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Fields of the requests. None: left to the server."""

    model: str
    n: int = 4
    temperature: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    system: str | None = None

    def body(self, messages: Sequence[Message]) -> dict[str, JSON]:
        """Return the body of a request for a stream. `n` is left out if it is 1: some servers refuse the field."""
        system: list[JSON] = [] if self.system is None else [{"role": "system", "content": self.system}]
        fields: dict[str, JSON] = {
            "model": self.model,
            "messages": [*system, *messages],
            "n": self.n if self.n > 1 else None,
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {name: value for name, value in fields.items() if value is not None}

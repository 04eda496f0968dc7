"""Which requests an engine can run at all, and how many sequences it takes at once. No torch.

The core asks for every group; the server asks first where a request has several, of which the core sees one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import EngineConfig
from engine.messages import Add, Embed, Ready


@dataclass(frozen=True, slots=True)
class Limits:
    """Which requests this engine can run at all, and how many sequences it accepts at once."""

    config: EngineConfig
    ready: Ready

    def refusal(self, message: Add | Embed) -> str | None:
        """Return why a group can never run here, as a sentence for the client; None if it can run."""
        new = [choice.max_tokens for choice in message.choices] if isinstance(message, Add) else [0]
        prompt, n, size, most = len(message.prompt), len(new), self.ready.block_size, self.ready.max_model_len
        least = 1 if isinstance(message, Add) else 0
        if prompt == 0 or n < 1 or min(new) < least:
            return "a request needs a prompt of at least one token, one choice and one new token"
        if message.adapter is not None and message.adapter not in dict(self.config.adapters):
            return f"there is no adapter '{message.adapter}'"
        if n > self.config.max_sequences:
            return f"n={n} is more than the {self.config.max_sequences} sequences that this engine runs at once"
        if prompt + least > most:
            return f"the prompt has {prompt} tokens; the maximum is {most}{' including the answer' * least}"
        # All n leave prefill together, each with a block to write to; later the oldest can go on alone if necessary.
        together = prompt // size + n if isinstance(message, Add) else 0
        blocks = max(together, -(-min(prompt + max(new), most) // size))
        if blocks > self.ready.blocks:
            return f"the request needs {blocks} blocks of {size} tokens of KV cache; there are {self.ready.blocks}"
        return None

    def why_full(self, message: Add | Embed, living: int) -> str | None:
        """Return why a group cannot be queued beside `living` living sequences, as a sentence for the client.

        None if it can be queued, and the rest of its request after it.
        """
        n = len(message.choices) + message.to_come if isinstance(message, Add) else 1
        if living + n > self.config.room:
            return f"{living} sequences are already running or waiting; there is no room for {n} more now"
        return None

"""The token counts in a stream: in one chunk at its end, in one for each choice, or along with the choices."""

from __future__ import annotations

from dataclasses import dataclass, field

from nproxy.openai.chunks import UpstreamChunk
from nproxy.openai.usage import Usage, within_leg


@dataclass(slots=True)
class Counts:
    """Collects the usage in the chunks of one answer.

    tails: the usages of chunks without choices. riders: the last usage that came with each choice.
    """

    tails: list[Usage] = field(default_factory=list)
    riders: dict[int, Usage] = field(default_factory=dict)

    def take(self, chunk: UpstreamChunk) -> None:
        """Take a chunk of a stream."""
        if chunk.usage is None:
            return
        if not chunk.choices:
            self.tails.append(chunk.usage)
        for part in chunk.choices:
            self.riders[part.index] = chunk.usage

    def whole(self, choices: int) -> Usage | None:
        """Return the token counts of all choices together; None if the server does not report them."""
        return within_leg(self.tails, self.riders, choices)

"""Tool calls in stream deltas: mended so that the official SDKs can put them together."""

from __future__ import annotations

from nproxy.openai.jsonvalue import JSON


class ToolCalls:
    """The tool calls of one choice so far; one object per choice.

    Indices count from 0 in the order of appearance. A call's id, type and name go out once: SDKs
    concatenate repeats. Same upstream index with another id is another call.
    """

    def mend(self, calls: list[JSON]) -> list[JSON]:
        """Give the delta's `tool_calls` list with the client's indices and without repeats; remembers what passed."""
        raise NotImplementedError

"""What an upstream can do for one model, as far as the plan needs to know it: a frozen snapshot, no IO."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capability:
    """One upstream's abilities for one model, at the moment a request is planned."""

    native_width: int | None = 1
    """Most choices that one call returns. None: no known limit; 1: no `n`."""
    n_untested: bool = False
    """`n: auto` has seen no answer, or doubts what it saw. The plan asks natively, counts, and adds missing choices."""
    stream_n: bool = True
    """Streams bring several choices, too."""
    width_seen: int | None = None
    """The widest call that `n: auto` saw answered in full. None if `n` is not `auto`, or nothing was seen."""
    exact: bool = False
    """The wire is known to be exact (the built-in engine): relayed even if n > 1."""
    seed: bool = True
    """A `seed` field may be sent."""
    seed_refused: bool = False
    """Answers showed that it takes no seed."""
    stream_options: bool = True
    """It takes `stream_options` that the client did not send."""
    request_id: bool = True
    """An `x-request-id` made by nproxy may be sent."""
    prompt_lists: bool = True
    """Legacy completions take a list of prompts in one call."""
    parallel: int | None = None
    """Calls at once, None for no limit."""
    alone: bool = False
    """A call needs a replica to itself."""
    alone_on_trial: bool = False
    """No stream that had a replica to itself has shown yet that this helps."""
    logprobs: bool = True
    """Answers bring log probabilities if they are asked for."""
    stream_usage: bool = True
    """A stream that is asked for usage reports it."""
    json_usage: bool = True
    """Usage in a JSON answer counts all choices. If False, legs of several choices are called as streams and folded."""
    prefix_cache: bool = False
    """A prompt that was just computed is cheap for the legs that follow on the same replica."""
    model: str | None = None
    """The upstream's own name for the model; None if it is the one the client asks for."""

    @property
    def n_learned(self) -> bool:
        """Whether `n: auto` learns from answers what the upstream can do."""
        return self.n_untested or self.width_seen is not None

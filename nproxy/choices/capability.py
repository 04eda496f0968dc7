"""What an upstream can do for one model, as the plan needs to know it: a frozen snapshot, no IO."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capability:
    """One upstream's abilities for one model, at the moment a request is planned.

    native_width: most choices that one call returns; None means no known limit, 1 means no `n`.
    n_untested: `n: auto` has seen no answer, or doubts what it saw; the plan asks natively, counts, and tops up.
    stream_n: streams bring several choices, too.
    width_seen: the widest call that `n: auto` saw answered in full; None where nobody wants to know.
    exact: the wire is known to be exact (the built-in engine): relayed even when n > 1.
    seed: a `seed` field may be sent. seed_refused: answers showed that it takes none.
    stream_options: it takes `stream_options` that the client did not send.
    request_id: an `x-request-id` of nproxy's making may be sent.
    prompt_lists: legacy completions take a list of prompts in one call. parallel: calls at once, None for no limit.
    alone: a call needs a replica to itself. alone_on_trial: no stream that was by itself has shown yet that this helps.
    logprobs: answers bring log probabilities where they are asked for.
    stream_usage: a stream that is asked for usage tells it.
    json_usage: usage in a JSON answer counts all choices; False has such legs asked for as streams and folded.
    prefix_cache: a prompt that was just computed is cheap for the legs that follow on the same replica.
    model: the upstream's own name for the model, None where it is the one the client asks for.
    """

    native_width: int | None = 1
    n_untested: bool = False
    stream_n: bool = True
    width_seen: int | None = None
    exact: bool = False
    seed: bool = True
    seed_refused: bool = False
    stream_options: bool = True
    request_id: bool = True
    prompt_lists: bool = True
    parallel: int | None = None
    alone: bool = False
    alone_on_trial: bool = False
    logprobs: bool = True
    stream_usage: bool = True
    json_usage: bool = True
    prefix_cache: bool = False
    model: str | None = None

    @property
    def n_learned(self) -> bool:
        """Whether `n: auto` finds out what it can do, by the answers that come."""
        return self.n_untested or self.width_seen is not None

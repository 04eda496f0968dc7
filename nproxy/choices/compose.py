"""The body of a leg: the request's shared bytes with the leg's own few fields spliced in."""

from __future__ import annotations

from nproxy.choices.capability import Capability
from nproxy.choices.leg import Leg
from nproxy.openai.body import Spliced
from nproxy.openai.requests import ChatRequest, CompletionRequest


def compose(request: ChatRequest | CompletionRequest, capability: Capability, leg: Leg) -> Spliced:
    """Write the JSON body of one leg; legs of one request share all bytes but their last few.

    A request for one choice goes through as sent, but for the upstream's own name of the model and, in a stream,
    `stream_options.include_usage`.
    """
    raise NotImplementedError

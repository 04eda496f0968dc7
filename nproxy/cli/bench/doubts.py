"""Warnings when figures may mislead, derived from the figures alone."""

from __future__ import annotations

from collections.abc import Iterator

from nproxy.cli.bench.report import Client, Requests, Tokens

BUSY = 0.8
"""Share of a core from which on this client itself may be the bottleneck."""
LATE = 0.010
"""Delay in seconds of one request in a hundred above which a warning is given."""
LONG_TAIL = 0.3
"""Share of the wall time after the last request from which on the rates say little about a server under load."""
SEVERAL = 1.1
"""Tokens per chunk from which on times between chunks are not times between tokens."""


def doubts(
    client: Client, requests: Requests, tokens: Tokens, tokens_per_chunk: float | None, tail_share: float
) -> Iterator[str]:
    """Yield warnings for the report. tail_share: the share of the wall time after the last request was sent."""
    if requests.ok and tail_share >= LONG_TAIL:
        behind = "" if client.late_p99 is None else ", or the server did not keep up with the rate"
        yield (
            f"{tail_share:.0%} of the wall time passed after the last request was sent: rates are too low,"
            f" because the measurement is short compared with one answer{behind}"
        )
    if client.cpu_share >= BUSY:
        yield (
            f"this client used {client.cpu_share:.0%} of a core and may have been the bottleneck:"
            " split the load between several clients"
        )
    if client.late_p99 is not None and client.late_p99 > LATE:
        yield (
            f"1 in 100 requests was sent {1000 * client.late_p99:.0f} ms or more after it was due:"
            " this client did not keep the rate; the delay is included in the latencies"
        )
    if tokens.by_chunks:
        yield (
            f"{tokens.by_chunks} of {requests.ok} answers had no usage: tokens are counted as the chunks with text in"
            " streams, and as 0 in whole answers"
        )
    if tokens_per_chunk is not None and tokens_per_chunk >= SEVERAL:
        yield f"a chunk holds {tokens_per_chunk:.1f} tokens on average: times between tokens are times between chunks"

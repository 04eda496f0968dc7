"""Divides limits of the configuration among the workers."""

from __future__ import annotations

from nproxy.config import Config, Upstream


def share(config: Config, index: int, workers: int) -> Config:
    """Return the configuration of one worker: `parallel` is divided, and the first workers get the remainder.

    index: from 0. workers: how many there are.
    """
    if workers == 1:
        return config
    upstreams = tuple(_share(upstream, index, workers) for upstream in config.upstreams)
    return config.model_copy(update={"upstreams": upstreams})


def _share(upstream: Upstream, index: int, workers: int) -> Upstream:
    if upstream.parallel == "auto":
        return upstream
    whole, rest = divmod(upstream.parallel, workers)
    return upstream.model_copy(update={"parallel": whole + (index < rest)})

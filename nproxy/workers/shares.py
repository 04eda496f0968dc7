"""What one worker may take of what the configuration allows all together."""

from __future__ import annotations

from nproxy.config import Config, Upstream


def share(config: Config, index: int, workers: int) -> Config:
    """The configuration of worker `index` (from 0) of so many: `parallel` is divided, the first ones take the rest."""
    if workers == 1:
        return config
    upstreams = tuple(_share(upstream, index, workers) for upstream in config.upstreams)
    return config.model_copy(update={"upstreams": upstreams})


def _share(upstream: Upstream, index: int, workers: int) -> Upstream:
    if upstream.parallel == "auto":
        return upstream
    whole, rest = divmod(upstream.parallel, workers)
    return upstream.model_copy(update={"parallel": whole + (index < rest)})

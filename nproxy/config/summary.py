"""What `nproxy check` prints of a good configuration: no secret ever."""

from __future__ import annotations

from pydantic import SecretStr

from nproxy.config.settings import Config
from nproxy.config.upstream import Upstream
from nproxy.config.values import NativeUpTo


def summarise(config: Config) -> str:
    """Describe a configuration in a few lines; keys and passwords are named, not shown."""
    lines = [f"listen    http://{_bracketed(config.listen.host)}:{config.listen.port}"]
    if config.engine is not None:
        lines.append(f"engine    {config.engine.model} ({config.engine.dtype})")
    lines += [_upstream(upstream) for upstream in config.upstreams]
    lines.append(f"limits    n up to {config.n_policy.max_n}, {config.limits.inflight_choices} choices in flight")
    return "\n".join(lines)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _upstream(upstream: Upstream) -> str:
    width = f"up to {upstream.n.native_up_to}" if isinstance(upstream.n, NativeUpTo) else upstream.n
    models = "auto" if upstream.models == "auto" else ", ".join(upstream.models)
    key = "own" if isinstance(upstream.api_key, SecretStr) else upstream.api_key
    replicas = ", ".join(map(str, upstream.replicas))
    return f"upstream  {upstream.name}: {replicas}; models {models}; n {width}; key {key}"

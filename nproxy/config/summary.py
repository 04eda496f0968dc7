"""What `nproxy check` prints for a valid configuration; never a secret."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from pydantic import SecretStr

from nproxy.config.certificate import certificate_expiry
from nproxy.config.engine import Engine
from nproxy.config.keys import Key
from nproxy.config.replicas import DnsName, Replica
from nproxy.config.settings import Admin, Auth, Config, Limits, Listen, NPolicy, Pages, Passthrough, Telemetry, loopback
from nproxy.config.upstream import Upstream
from nproxy.config.values import NativeUpTo


def summarise(config: Config, keys: Sequence[Key], pair: tuple[bytes, bytes] | None = None) -> str:
    """Describe a configuration in a few lines.

    keys: those of the keys file; they are named and counted, not shown. pair: what the files of the certificate and its
    key hold, if there are any.
    """
    lines = [("listen", _listen(config.listen, None if pair is None else pair[0].decode("utf-8", "replace")))]
    if config.engine is not None:
        lines.append(("engine", _engine(config.engine)))
    lines += [("upstream", _upstream(upstream)) for upstream in config.upstreams]
    lines += [
        ("n", _n_policy(config.n_policy)),
        ("limits", _limits(config.limits)),
        ("auth", _open_to(config.listen) if config.auth is None else _auth(config.auth, keys)),
        ("paths", _paths(config.passthrough)),
        ("pages", _pages(config.pages)),
        ("telemetry", _telemetry(config.telemetry, moved=config.admin is not None)),
    ]
    if config.admin is not None:
        lines.append(("admin", _admin(config.admin)))
    lines += [("note", note) for note in _notes(config)]
    return "\n".join(f"{what:10}{text}" for what, text in lines)


def _notes(config: Config) -> Iterator[str]:
    """Yield warnings about settings that are valid but may not be intended."""
    shown = {upstream.name for upstream in config.upstreams if upstream.api_key == "passthrough"}
    for upstream in config.upstreams:
        if upstream.name in shown and (others := [name for name in upstream.fallback if name in shown]):
            yield (
                f"a client's key for {upstream.name} is also sent to {', '.join(others)} when a request falls back:"
                " set api_key of each (or api_key: none), unless the same party runs them"
            )


def _listen(listen: Listen, chain: str | None) -> str:
    scheme = "http" if listen.tls is None else "https"
    parts = [f"{scheme}://{_address(listen.host, listen.port)}", _counted(listen.workers, "worker")]
    if chain is not None and (expiry := certificate_expiry(chain)) is not None:
        parts.append(f"with a certificate until {datetime.fromtimestamp(expiry, UTC):%Y-%m-%d %H:%M} UTC")
    if listen.trusted_proxies:
        parts.append(f"behind {', '.join(map(str, listen.trusted_proxies))}")
    if listen.cors_origins:
        parts.append(f"for web pages of {', '.join(listen.cors_origins)}")
    return ", ".join(parts)


def _n_policy(policy: NPolicy) -> str:
    return f"up to {policy.max_n}; greedy {policy.greedy}; on_leg_failure {policy.on_leg_failure}"


def _open_to(listen: Listen) -> str:
    """The text for a configuration without keys. A name counts as an address that others can reach: it may be any."""
    return "none: open to anybody" + (" on this machine" if loopback(listen.host) else f" who can reach {listen.host}")


def _paths(passthrough: Passthrough) -> str:
    shown = passthrough.paths if isinstance(passthrough.paths, str) else ", ".join(passthrough.paths)
    return f"{shown} passed through" + (f" to {passthrough.upstream}" if passthrough.upstream else "")


def _pages(pages: Pages) -> str:
    shown = [name for name, on in (("playground at /", pages.playground), ("reference at /docs", pages.docs)) if on]
    return ", ".join(shown) or "none"


def _telemetry(telemetry: Telemetry, *, moved: bool) -> str:
    """moved: metrics are on the admin port."""
    metrics = "no metrics" if not telemetry.metrics else f"/metrics{' on the admin port' if moved else ''}"
    parts = [metrics, f"{telemetry.log_format} logs"]
    if telemetry.log_content:
        parts.append("with prompts and answers")
    if telemetry.otlp_endpoint is not None:
        parts.append(f"traces of {telemetry.trace_ratio * 100:.4g} % of requests to {telemetry.otlp_endpoint}")
    return ", ".join(parts)


def _engine(engine: Engine) -> str:
    dtype = engine.dtype if engine.quantization is None else f"{engine.dtype}, {engine.quantization}"
    device = "" if engine.device == "auto" else f" on {engine.device}"
    kernels = "" if engine.kernels == "auto" else f" with {engine.kernels} kernels"
    mode = "; deterministic" if engine.deterministic else ""
    adapters = f"; adapters {', '.join(engine.adapters)}" if engine.adapters else ""
    return f"{engine.model} ({dtype}){device}{kernels}{mode}{adapters}"


def _upstream(upstream: Upstream) -> str:
    replicas = ", ".join(map(_replica, upstream.replicas)) or "servers that register"
    parts = {
        "models": "auto" if upstream.models == "auto" else ", ".join(upstream.models),
        "n": f"up to {upstream.n.native_up_to}" if isinstance(upstream.n, NativeUpTo) else upstream.n,
        "parallel": str(upstream.parallel),
        "balance": upstream.balance,
        "resume": upstream.resume,
        "fallback": ", ".join(upstream.fallback),
        "key": "own" if isinstance(upstream.api_key, SecretStr) else upstream.api_key,
    }
    settings = "; ".join(f"{what} {value}" for what, value in parts.items() if value)
    return f"{upstream.name}: {replicas}; {settings}"


def _replica(replica: Replica | DnsName) -> str:
    return str(replica) if replica.weight == 1 else f"{replica} (weight {replica.weight:g})"


def _limits(limits: Limits) -> str:
    a_minute = {
        "requests": limits.requests_per_minute,
        "choices": limits.choices_per_minute,
        "tokens": limits.tokens_per_minute,
    }
    rates = [f"{most} {what} per minute" for what, most in a_minute.items() if most is not None]
    return (
        f"{limits.inflight_choices} choices in flight, {limits.per_key_choices} per key;"
        f" {limits.queue_choices} wait up to {limits.queue_seconds:g} s"
    ) + (f"; per key {', '.join(rates)}" if rates else "")


def _auth(auth: Auth, keys: Sequence[Key]) -> str:
    if auth.api_keys_file is None:
        return "one key"
    names = [key.name + (" (disabled)" if key.disabled else "") for key in keys]
    return f"{_counted(len(names), 'key')}: {', '.join(names)}"


def _admin(admin: Admin) -> str:
    return f"http://{_address(admin.host, admin.port)}, {'open' if admin.token is None else 'with a token'}"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"

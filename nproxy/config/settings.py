"""The configuration as a type: attribute names are the keys of the YAML file."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any, Literal, Self

from pydantic import ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from nproxy.config.engine import ENGINE_UPSTREAM, Engine
from nproxy.config.sections import Settings, conflict, refuse
from nproxy.config.upstream import Upstream
from nproxy.config.values import (
    Collector,
    Count,
    File,
    HeaderName,
    Host,
    HugePages,
    Mebibytes,
    Network,
    Paths,
    Port,
    Seconds,
    SecondsOrZero,
    Secret,
    Share,
    Token,
    WebOrigin,
    Whole,
    Width,
    Workers,
)


class Tls(Settings):
    """The certificate that the gateway shows to clients. Files that change are read again."""

    certificate: File
    """PEM file of the certificate, followed by the intermediate certificates of its chain."""
    key: File
    """PEM file of its private key."""


class Listen(Settings):
    """Where the gateway listens."""

    host: Host = "127.0.0.1"
    """Address or name to bind; `::` or `0.0.0.0` for all addresses."""
    port: Port = 8000
    """TCP port; 0 takes a free one."""
    workers: Workers = 1
    """Number of gateway processes; they share the port. At most one per processor core is useful."""
    huge_pages: HugePages = "objects"
    """What moves into huge pages of memory when a gateway starts (Linux from 6.1 on), so that requests take less time:
    objects; or all, with the interpreter's code (x86-64), which profilers such as py-spy and perf then do not find."""
    drain_seconds: SecondsOrZero = 30
    """How long requests in flight may continue after SIGTERM, in seconds."""
    tls: Tls | None = None
    """Serve HTTPS instead of HTTP."""
    trusted_proxies: tuple[Network, ...] = ()
    """Addresses of proxies whose X-Forwarded-For is trusted to name the client."""
    cors_origins: tuple[WebOrigin, ...] = ()
    """Origins whose pages may call the API from a browser; "*" for all."""


class NPolicy(Settings):
    """How nproxy handles `n`."""

    max_n: Width = 128
    """Largest `n` that a request may ask for; prompts x n is never more than 512."""
    greedy: Literal["accept", "reject", "dedupe"] = "accept"
    """n > 1 at temperature 0: accept computes all choices, reject answers 400, dedupe computes one and returns it n
    times."""
    on_leg_failure: Literal["fail", "partial"] = "fail"
    """When a leg fails for good: fail answers with an error, partial with the choices that succeeded."""


class Passthrough(Settings):
    """Which other paths are forwarded to an upstream unchanged."""

    paths: Paths = "default"
    """default: the inference endpoints that nproxy knows by name (embeddings, responses, messages, audio, images,
    moderations, rerank, score, classify, pooling, tokenize, detokenize, tokenizer_info); all: every path; or a list of
    paths."""
    upstream: str | None = None
    """The upstream for requests whose body names no known model; null: the only upstream."""


class Limits(Settings):
    """Limits for one client, and for all clients together."""

    body_mib: Mebibytes = 10
    """Maximum size of a request body, in MiB."""
    inflight_choices: Count = 1024
    """Maximum number of choices in flight, at least `n_policy.max_n`; beyond it, requests wait in the queue."""
    per_key_choices: Count = 512
    """Maximum number of choices in flight of one key; beyond it, its requests wait in the queue."""
    queue_choices: Whole = 1024
    """Maximum number of choices that wait; beyond it, requests get 429."""
    queue_seconds: SecondsOrZero = 10
    """Maximum time that a request waits, in seconds; then it gets 429. It also limits the wait for capacity at a full
    server."""
    requests_per_minute: Count | None = None
    """Maximum number of requests per minute of one key; null: no limit."""
    choices_per_minute: Count | None = None
    """Maximum number of choices per minute of one key; null: no limit."""
    tokens_per_minute: Count | None = None
    """Maximum number of tokens per minute of one key, prompts and answers together; null: no limit."""
    memory_mib: Count | None = None
    """New requests are refused while the process uses more memory, in MiB; null: 80 % of the memory of the machine or
    of its container, divided by the workers."""
    write_seconds: Seconds = 60
    """A client that reads nothing for so many seconds has its request ended."""


class Auth(Settings):
    """Who may call. If absent: anybody, with any key or none."""

    api_keys_file: File | None = None
    """YAML file of keys, each with its name, its hash and its limits; read again when it changes."""
    api_key: Token | None = None
    """One key for all clients, instead of a file."""

    @model_validator(mode="after")
    def _has_keys(self, info: ValidationInfo) -> Self:
        refuse(info, self._keys_conflict())
        return self

    def _keys_conflict(self) -> Iterator[PydanticCustomError]:
        if self.api_keys_file is None and self.api_key is None:
            yield conflict("needs either api_keys_file or api_key", "auth")
        if self.api_keys_file is not None and self.api_key is not None:
            yield conflict("must not be set together with auth.api_keys_file", "auth", "api_key")


class Admin(Settings):
    """A separate port for metrics, status and the registration of servers."""

    host: Host = "127.0.0.1"
    """Address or name to bind."""
    port: Port = 9000
    """TCP port; 0 takes a free one."""
    token: Token | None = None
    """The bearer token that callers must send; null: none, which is allowed only on a loopback address."""


class Stream(Settings):
    """How streams are kept alive."""

    ping_seconds: Seconds | None = 15
    """Seconds of silence after which a comment is sent; null: never."""
    headers_after_seconds: Seconds | None = 30
    """If there is no event within so many seconds, the status 200 is sent; null: wait for the first event."""


class Pages(Settings):
    """The pages that the gateway serves itself. The pages need no key; the requests that they make do."""

    playground: bool = True
    """Whether GET / is the playground, which shows n answers side by side."""
    docs: bool = True
    """Whether GET /docs is the API reference, made from /openapi.json."""


class Telemetry(Settings):
    """What the gateway reports about itself."""

    metrics: bool = True
    """Whether GET /metrics is served."""
    gen_ai_metrics: bool = True
    """Whether it also has OpenTelemetry's metrics for generative AI, `gen_ai_*`: more than half of all series."""
    log_format: Literal["json", "text"] = "json"
    """The format of log lines."""
    log_content: bool = False
    """Whether prompts and answers of chat completions and completions are written to the access log and to spans."""
    otlp_endpoint: Collector | None = None
    """Base URL of an OpenTelemetry collector that receives traces by OTLP over HTTP; `/v1/traces` is appended to it."""
    otlp_headers: dict[HeaderName, Secret] | None = None
    """Headers that are sent to the collector; null: those of OTEL_EXPORTER_OTLP_HEADERS."""
    trace_ratio: Share = 1.0
    """Share of requests that are traced; for a caller that sends `traceparent`, its own decision counts."""


class Config(Settings):
    """The whole configuration. Without an engine and upstreams, the engine runs with the default model."""

    listen: Listen = Listen()
    engine: Engine | None = None
    upstreams: tuple[Upstream, ...] = ()
    n_policy: NPolicy = NPolicy()
    passthrough: Passthrough = Passthrough()
    limits: Limits = Limits()
    stream: Stream = Stream()
    pages: Pages = Pages()
    telemetry: Telemetry = Telemetry()
    auth: Auth | None = None
    admin: Admin | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_to_the_engine(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("engine") and not data.get("upstreams") and "engine" not in data:
            return {**data, "engine": {}}
        return data

    @model_validator(mode="before")
    @classmethod
    def _keep_the_clients_keys(cls, data: Any) -> Any:
        """Make `api_key: none` the default of upstreams if there is an `auth` section.

        The client's Authorization header is then meant for nproxy alone: an upstream gets its own key or none.
        """
        if not isinstance(data, dict) or data.get("auth") is None or not isinstance(data.get("upstreams"), list):
            return data
        own = [{"api_key": "none", **one} if isinstance(one, dict) else one for one in data["upstreams"]]
        return {**data, "upstreams": own}

    @model_validator(mode="after")
    def _keys_agree(self, info: ValidationInfo) -> Self:
        refuse(
            info,
            self._no_upstream(),
            self._passthrough_conflict(),
            self._choices_conflict(),
            self._token_conflict(),
            self._port_conflict(),
            self._exporter_conflict(),
            self._headers_conflict(),
            *(check for place in range(len(getattr(self, "upstreams", ()))) for check in self._of_upstream(place)),
        )
        return self

    def _of_upstream(self, position: int) -> Iterator[Iterator[PydanticCustomError]]:
        upstream = self.upstreams[position]
        yield self._name_conflict(upstream, position)
        yield self._fallback_conflict(upstream, position)
        yield self._repeated_replica(upstream, position)
        yield self._no_replica(upstream, position)
        yield self._parallel_conflict(upstream, position)
        yield self._key_conflict(upstream, position)

    def _names(self, count: int | None = None) -> list[str]:
        """Return the names of the built-in engine, if there is one, and of the first `count` upstreams."""
        own = [] if self.engine is None else [ENGINE_UPSTREAM]
        return own + [upstream.name for upstream in self.upstreams[:count]]

    def _no_upstream(self) -> Iterator[PydanticCustomError]:
        if self.engine is None and not self.upstreams:
            yield conflict("needs an engine or at least one upstream")

    def _name_conflict(self, upstream: Upstream, position: int) -> Iterator[PydanticCustomError]:
        if upstream.name == ENGINE_UPSTREAM:
            yield conflict("is the name of the built-in engine", "upstreams", position, "name")
        elif upstream.name in self._names(position):
            yield conflict("is taken by another upstream", "upstreams", position, "name")

    def _passthrough_conflict(self) -> Iterator[PydanticCustomError]:
        if self.passthrough.upstream is not None and self.passthrough.upstream not in (names := self._names()):
            message = f"is not the name of an upstream; there are: {', '.join(names)}"
            yield conflict(message, "passthrough", "upstream")

    def _fallback_conflict(self, upstream: Upstream, position: int) -> Iterator[PydanticCustomError]:
        others = [name for name in self._names() if name != upstream.name]
        for place, name in enumerate(upstream.fallback):
            if name not in others:
                message = f"is not the name of another upstream; there are: {', '.join(others) or 'none'}"
                yield conflict(message, "upstreams", position, "fallback", place)

    def _repeated_replica(self, upstream: Upstream, position: int) -> Iterator[PydanticCustomError]:
        known: set[str] = set()
        for place, replica in enumerate(upstream.replicas):
            if str(replica) in known:
                message = "occurs twice; to send a replica more calls, set its weight"
                yield conflict(message, "upstreams", position, "replicas", place)
            known.add(str(replica))

    def _no_replica(self, upstream: Upstream, position: int) -> Iterator[PydanticCustomError]:
        if not upstream.replicas and self.admin is None:
            message = "must not be empty, unless servers register over the admin port"
            yield conflict(message, "upstreams", position, "replicas")

    def _parallel_conflict(self, upstream: Upstream, position: int) -> Iterator[PydanticCustomError]:
        if upstream.parallel != "auto" and upstream.parallel < self.listen.workers:
            message = "must be at least listen.workers, because the workers share it"
            yield conflict(message, "upstreams", position, "parallel")

    def _key_conflict(self, upstream: Upstream, position: int) -> Iterator[PydanticCustomError]:
        if self.auth is not None and upstream.api_key == "passthrough":
            yield conflict("must not be passthrough if auth is set", "upstreams", position, "api_key")

    def _choices_conflict(self) -> Iterator[PydanticCustomError]:
        if self.n_policy.max_n > self.limits.inflight_choices:
            yield conflict("must be at least n_policy.max_n", "limits", "inflight_choices")

    def _token_conflict(self) -> Iterator[PydanticCustomError]:
        if self.admin is not None and self.admin.token is None and not loopback(self.admin.host):
            yield conflict("is required, because other machines can reach the port", "admin", "token")

    def _port_conflict(self) -> Iterator[PydanticCustomError]:
        port = self.listen.port
        # a free port is never taken
        if self.admin is not None and port == self.admin.port != 0 and _overlap(self.listen.host, self.admin.host):
            yield conflict("must not be listen.port on the same host", "admin", "port")

    def _exporter_conflict(self) -> Iterator[PydanticCustomError]:
        if self.telemetry.otlp_endpoint is not None and not _installed(EXPORTER):
            yield conflict(
                "needs OpenTelemetry: pip install '.[otlp]' in nproxy's folder", "telemetry", "otlp_endpoint"
            )

    def _headers_conflict(self) -> Iterator[PydanticCustomError]:
        if self.telemetry.otlp_headers and self.telemetry.otlp_endpoint is None:
            yield conflict("has no effect without otlp_endpoint", "telemetry", "otlp_headers")


EXPORTER = "opentelemetry.exporter.otlp.proto.http"
"""The package that the extra `otlp` installs."""


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # its parent package is not installed either
        return False


def _overlap(one: str, other: str) -> bool:
    """Whether two servers cannot listen on the same port of these hosts."""
    hosts = {one, other}
    if len(hosts) == 1 or "::" in hosts:  # which takes IPv4 connections, too
        return True
    if _EVERY_IPV4 in hosts:
        (there,) = hosts - {_EVERY_IPV4}
        return there == "localhost" or _is_ipv4(there)
    return "localhost" in hosts and all(map(loopback, hosts))


_EVERY_IPV4 = "0.0.0.0"  # noqa: S104 - compared, and not bound


def _is_ipv4(host: str) -> bool:
    try:
        return ip_address(host).version == 4
    except ValueError:
        return False


def loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name other than localhost may be any address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

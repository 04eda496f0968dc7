"""The addresses of an upstream's servers: fixed ones, or a DNS name that resolves to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from nproxy.config.sections import Settings
from nproxy.config.values import PATH, Host, Port, Weight, is_host

LONGEST_NAME, LONGEST_PART = 253, 63
DEFAULT_PORTS = {"http": 80, "https": 443}
CALLS = ("/chat/completions", "/completions")
"""Paths that nproxy appends to a base URL; users copy them with it."""
_UP_TO_THE_DOT = re.compile(r"(?P<kept>[a-z]+://[^/:]+)\.(?=[:/]|$)")
_NAME_AND_PORT = re.compile(r"(?P<name>[^:/\s\[\]]+):(?P<port>\d{1,5})")


class Replica(Settings):
    """One base URL of an upstream, without a trailing slash; or a Unix socket and the URL used over it."""

    url: str
    """Base URL, such as http://10.0.0.1:8000/v1."""
    socket: Path | None = None
    """Unix socket over which the URL is requested."""
    weight: Weight = 1
    """Share of the calls, relative to the other replicas."""

    def __str__(self) -> str:
        return known_as(self.url) if self.socket is None else f"unix:{self.socket}"


class DnsName(Settings):
    """A host name with a server behind each of its addresses, such as a headless service of Kubernetes."""

    name: Host
    """The name; resolved repeatedly."""
    port: Annotated[Port, Field(ge=1)]
    """The port at every address."""
    scheme: Literal["http", "https"] = "http"
    """https: the certificate must be for the name."""
    path: Annotated[str, Field(pattern=PATH)] = "/v1"
    """The path below which the OpenAI API is served."""
    weight: Weight = 1
    """The share of each address."""

    def __str__(self) -> str:
        return f"dns:{self.name.lower().removesuffix('.')}:{self.port}"


def parse_replica(value: object) -> Replica | DnsName:
    """Read one entry of `replicas`.

    It is `http://host:port/v1`, `https://...`, `unix:/path/of.sock`, `dns:name:port`, or a mapping:
    `{url: ..., weight: 2}`, or `{dns: name:port}` with `scheme`, `path` and `weight` if they differ from the defaults.
    A URL without a path gets `/v1`, where every OpenAI server listens.
    """
    match value:
        case Replica() | DnsName():
            return value
        case {"dns": address, **mapping}:
            return _parse_dns(address, mapping)
        case {"url": str(url), **mapping}:
            if unknown := mapping.keys() - {"weight"}:
                raise PydanticCustomError("replica", "unknown key next to url: {key}", {"key": min(map(str, unknown))})
            return Replica.model_validate({**parse_address(url).model_dump(), **mapping})
        case str() if value.startswith("dns:"):
            return _parse_dns(value.removeprefix("dns:").strip(), {})
        case str():
            return parse_address(value)
        case _:
            raise PydanticCustomError(
                "replica",
                "must be a URL such as http://127.0.0.1:8001/v1, unix:/path, {url: ..., weight: 2} or {dns: name:port}",
            )


def _parse_dns(address: object, rest: Mapping[Any, Any]) -> DnsName:
    found = _NAME_AND_PORT.fullmatch(address) if isinstance(address, str) else None
    if found is None:
        raise PydanticCustomError("replica", "dns needs a name and a port, as in {dns: vllm.default.svc:8000}")
    if unknown := rest.keys() - {"scheme", "path", "weight"}:
        raise PydanticCustomError("replica", "unknown key next to dns: {key}", {"key": min(map(str, unknown))})
    return DnsName.model_validate({"name": found["name"], "port": int(found["port"]), **rest})


def parse_address(value: str) -> Replica:
    """Read a URL or `unix:/path`; the URL is normalised by `base_url`.

    Credentials, a query and a fragment are refused: credentials belong in `api_key`, the other two have no meaning
    here.
    """
    if value.startswith("unix:"):
        path = Path(value.removeprefix("unix:").removeprefix("//"))
        if "\0" in value:
            raise PydanticCustomError("replica", "must not contain a NUL character")
        if not path.is_absolute():
            raise PydanticCustomError("replica", "a Unix socket needs an absolute path, as in unix:/run/engine.sock")
        return Replica(url="http://localhost/v1", socket=path)
    try:
        parts = urlsplit(value)
        port_ok = parts.port is None or parts.port > 0
    except ValueError as error:
        raise PydanticCustomError("replica", "is not a valid URL") from error
    if parts.scheme not in ("http", "https"):
        raise PydanticCustomError("replica", "must begin with http://, https:// or unix:/")
    if "@" in parts.netloc:
        raise PydanticCustomError("credentials", "must not contain credentials; use api_key")
    if "${" in parts.netloc:
        raise PydanticCustomError("replica", "must not contain variables: these are for secrets")
    if (
        not parts.hostname
        or not is_host(parts.hostname)
        or not _resolvable(parts.hostname)
        or not port_ok
        or not value.isascii()
        or any(c.isspace() or ord(c) < 32 for c in value)
    ):
        raise PydanticCustomError("replica", "is not a valid URL")
    if parts.query or parts.fragment:
        raise PydanticCustomError("replica", "must not contain a query or a fragment")
    below = parts.path.rstrip("/")
    if (called := next((call for call in CALLS if below.endswith(call)), None)) is not None:
        raise PydanticCustomError("replica", "must be the base URL, without {call}", {"call": called})
    return Replica(url=base_url(parts.scheme, parts.hostname, parts.port, below or "/v1"))


def _resolvable(host: str) -> bool:
    """Whether a resolver may be asked for a name: its parts have 1 to 63 characters (RFC 1035, section 2.3.4)."""
    name = host.removesuffix(".")
    return len(name) <= LONGEST_NAME and all(0 < len(part) <= LONGEST_PART for part in name.split("."))


def base_url(scheme: str, host: str, port: int | None, path: str) -> str:
    """Return a base URL in normal form (RFC 3986, section 6.2).

    The host is lower case, an IPv6 address is in its short form, the scheme's default port is omitted, and there is no
    trailing slash. host: a name or an address, without brackets.
    """
    with suppress(ValueError):
        host = str(ip_address(host))
    host = f"[{host}]" if ":" in host else host.lower()
    usual = port is None or port == DEFAULT_PORTS[scheme]
    return f"{scheme}://{host}{'' if usual else f':{port}'}{path.rstrip('/')}"


def known_as(url: str) -> str:
    """Return the label of a base URL: without the dot at the end of a host's name.

    The dot keeps a resolver from using its search list, so it stays in the URL that is requested; but it does not
    distinguish two servers.
    """
    return _UP_TO_THE_DOT.sub(r"\g<kept>", url, count=1)


def _listed(value: object) -> object:
    """Wrap a single entry in a list."""
    return [value] if isinstance(value, dict | str | Replica | DnsName) else value


_ONE = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"url": {"type": "string"}, "weight": {"type": "number", "exclusiveMinimum": 0}},
            "required": ["url"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                "dns": {"type": "string"},
                "scheme": {"enum": ["http", "https"]},
                "path": {"type": "string"},
                "weight": {"type": "number", "exclusiveMinimum": 0},
            },
            "required": ["dns"],
            "additionalProperties": False,
        },
    ]
}

Replicas = Annotated[
    tuple[Annotated[Replica | DnsName, BeforeValidator(parse_replica)], ...],
    BeforeValidator(_listed),
    WithJsonSchema({"type": "array", "items": _ONE}),
]

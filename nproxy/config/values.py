"""The types of values in settings: numbers, secrets, paths, model maps.

Each value is parsed once, here, into the form that the rest of the program uses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from nproxy.config.contents import contents
from nproxy.config.sections import Settings
from nproxy.config.watching import digest

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_ALMOST_A_REFERENCE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")
_ENV_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _no_bool(value: object) -> object:
    """Refuse true and false for a number: Python would take them for 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("no_bool", "must be a number, not true or false")
    return value


Count = Annotated[int, Field(ge=1), BeforeValidator(_no_bool)]
Width = Annotated[int, Field(ge=1, le=512), BeforeValidator(_no_bool)]
Workers = Annotated[int, Field(ge=1, le=256), BeforeValidator(_no_bool)]
HugePages = Literal["none", "objects", "all"]
Whole = Annotated[int, Field(ge=0), BeforeValidator(_no_bool)]
Port = Annotated[int, Field(ge=0, le=65535), BeforeValidator(_no_bool)]
SecondsOrZero = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_no_bool)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_bool)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), BeforeValidator(_no_bool)]
Part = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False), BeforeValidator(_no_bool)]
Weight = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False), BeforeValidator(_no_bool)]
Mebibytes = Annotated[float, Field(gt=0, le=1024), BeforeValidator(_no_bool)]


def _parse_adapter_name(value: str) -> str:
    """Accept a name that can precede the `=` in the engine's own option."""
    if not value or "=" in value:
        raise PydanticCustomError("adapter_name", "must be a model id without an equals sign")
    return value


AdapterName = Annotated[str, AfterValidator(_parse_adapter_name)]


def is_host(value: str) -> bool:
    """Whether it is an IP address, or a name that a resolver may know."""
    try:
        ip_address(value)
    except ValueError:
        try:
            name = value.encode("idna").decode()
        except UnicodeError:
            return False
        return _HOST_NAME.fullmatch(name) is not None
    return True


def _parse_host(value: str) -> str:
    if not is_host(value):
        raise PydanticCustomError("host", "must be an IP address or a host name, without a port")
    return value


Host = Annotated[str, Field(min_length=1), AfterValidator(_parse_host)]


def _resolve_secret(value: object, info: ValidationInfo) -> object:
    """Read `${NAME}` from the environment and `file:PATH` from a file; anything else is the secret itself.

    The validation context may hold the environment (`environ`) and the folder of relative paths (`folder`). If its
    `secrets` has a value for a reference, that value is used. Values that are looked up are added there, and the
    digests of files that are read are added to its `files`.
    """
    context: Mapping[str, Any] = info.context or {}
    if isinstance(value, SecretStr):
        return value
    known: dict[str, str] = context.get("secrets", {})
    if isinstance(value, str) and value in known:
        return SecretStr(known[value])
    found = _look_up(value, context)
    if isinstance(value, str) and value != found:
        known[value] = found
    return SecretStr(found)


def _look_up(value: object, context: Mapping[str, Any]) -> str:
    if not isinstance(value, str) or not value:
        raise PydanticCustomError("secret", "must be text: ${NAME}, file:PATH, or the secret itself")
    if reference := _ENV_REFERENCE.fullmatch(value):
        found = context.get("environ", os.environ).get(reference[1])
        if not found:
            raise PydanticCustomError("secret", "environment variable {name} is not set", {"name": reference[1]})
        return str(found)
    if _ALMOST_A_REFERENCE.fullmatch(value):
        raise PydanticCustomError("secret", "a variable is written with braces: ${NAME}")
    if "${" in value:
        raise PydanticCustomError("secret", "must be either ${NAME} alone or the secret itself, not a mixture")
    if value == "file:":
        raise PydanticCustomError("secret", "needs a path behind file:")
    if value.startswith("file:"):
        path = _beside(context, Path(value.removeprefix("file:")))
        _note(context, path)
        try:
            found = contents(path).decode().strip()
        except (OSError, UnicodeError) as error:
            reason = error.strerror or error if isinstance(error, OSError) else "not valid UTF-8"
            raise PydanticCustomError(
                "secret", "cannot read {path}: {reason}", {"path": str(path), "reason": str(reason)}
            ) from error
        if not found:
            raise PydanticCustomError("secret", "{path} is empty", {"path": str(path)})
        return found
    return value


def _beside(context: Mapping[str, Any], path: Path) -> Path:
    """Resolve a path: relative ones from the folder of the configuration file, ~ as a home folder."""
    try:
        home = path.expanduser()
    except RuntimeError as error:
        raise PydanticCustomError("path", "begins with a home folder that is not known") from error
    if "\0" in str(home):
        raise PydanticCustomError("path", "must not contain a null character")
    return Path(context.get("folder", Path())) / home


def _note(context: Mapping[str, Any], path: Path) -> None:
    """Note a file's digest just before it is read, so that a change in between is noticed later and not missed."""
    if "files" in context:
        context["files"][path] = digest(path)


def _key_or_word(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value not in _WORDS and (word := value.strip().lower()) in _WORDS:
        raise PydanticCustomError("secret", "must be written {word}", {"word": word})
    return value if value in _WORDS else _bearer_token(value, info)


def _bearer_token(value: object, info: ValidationInfo) -> object:
    found = _shown_in_a_header(value, info)
    if isinstance(found, SecretStr) and found.get_secret_value().lower().startswith("bearer "):
        raise PydanticCustomError("secret", "must be the key alone, without Bearer before it")
    return found


def _header_safe(value: object) -> object:
    text = value.get_secret_value() if isinstance(value, SecretStr) else ""
    if not text.isascii() or not text.isprintable():
        raise PydanticCustomError("secret", "contains characters that are not allowed in an HTTP header")
    return value


_Word = Literal["passthrough", "none"]
_WORDS: tuple[str, ...] = get_args(_Word)

ApiKey = Annotated[
    _Word | SecretStr,
    BeforeValidator(_key_or_word),
    WithJsonSchema({"type": "string", "examples": ["passthrough", "none", "${FLEET_KEY}", "file:/run/secrets/fleet"]}),
]


def _shown_in_a_header(value: object, info: ValidationInfo) -> object:
    return _header_safe(_resolve_secret(value, info))


_SECRET = WithJsonSchema({"type": "string", "examples": ["${ADMIN}", "file:/run/secrets/admin"]})

Secret = Annotated[SecretStr, BeforeValidator(_shown_in_a_header), _SECRET]
Token = Annotated[SecretStr, BeforeValidator(_bearer_token), _SECRET]
"""A secret that is sent behind `Bearer`."""


def _beside_the_file(value: Path, info: ValidationInfo) -> Path:
    """Resolve a relative path from the folder of the configuration file; its digest goes into the context's `files`."""
    context: Mapping[str, Any] = info.context or {}
    path = _beside(context, value)
    _note(context, path)
    return path


File = Annotated[Path, AfterValidator(_beside_the_file), WithJsonSchema({"type": "string"})]


def _from_the_folder(value: str, info: ValidationInfo) -> str:
    """Resolve a relative path from the folder of the configuration file; nothing of it is read."""
    return str(_beside(info.context or {}, Path(value)))


Folder = Annotated[str, Field(min_length=1), AfterValidator(_from_the_folder)]


def _parse_network(value: object) -> object:
    try:
        return ip_network(value, strict=False) if isinstance(value, str) else value
    except ValueError as error:
        raise PydanticCustomError("network", "must be an IP address or a network such as 10.0.0.0/8") from error


Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_parse_network), WithJsonSchema({"type": "string"})]


_ORIGIN = re.compile(r"\*|https?://(\[[0-9a-f:.]+\]|[a-z0-9]([a-z0-9.-]*[a-z0-9])?)(:[0-9]{1,5})?")


def _parse_origin(value: str) -> str:
    """Accept an origin as a browser writes it: lower case, no trailing slash."""
    if not _ORIGIN.fullmatch(value):
        raise PydanticCustomError("origin", 'must be an origin such as https://chat.example, or "*" for all')
    return value


WebOrigin = Annotated[str, AfterValidator(_parse_origin)]


def _parse_collector(value: str) -> str:
    """Accept a URL to which paths can be appended: no credentials, query or fragment; a trailing slash is removed."""
    try:
        parts = urlsplit(value)
        good = parts.hostname and (parts.port is None or parts.port > 0) and "@" not in parts.netloc
    except ValueError:
        good = False
    if not good or parts.scheme not in ("http", "https") or not re.fullmatch(r"[!-~]+", value) or set("?#") & {*value}:
        raise PydanticCustomError("collector", "must be a URL such as http://127.0.0.1:4318, without a query")
    return value.rstrip("/")


Collector = Annotated[str, AfterValidator(_parse_collector)]


def _parse_header_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", value):
        raise PydanticCustomError("header", "must be a header name")
    return value


HeaderName = Annotated[str, AfterValidator(_parse_header_name)]

NAME, PATH = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", r"^/[!$-~]*$"
Name = Annotated[str, Field(pattern=NAME)]
"""A name that can be part of a header, a log line and a label."""


class NativeUpTo(Settings):
    """An upstream that supports `n`, but only up to a number of choices per call."""

    native_up_to: Count
    """Largest `n` of one call; more choices are divided over several calls."""


def _n_form(value: object) -> str | None:
    if isinstance(value, dict | NativeUpTo):
        return "width"
    return "word" if isinstance(value, str) and value in ("auto", "native", "fanout") else None


NMode = Annotated[
    Annotated[Literal["auto", "native", "fanout"], Tag("word")] | Annotated[NativeUpTo, Tag("width")],
    Discriminator(
        _n_form,
        custom_error_type="n_mode",
        custom_error_message="must be auto, native, fanout or {native_up_to: 4}",
    ),
]


def _parse_parallel(value: object) -> object:
    if value == "auto" or (isinstance(value, str) and value.isdecimal() and int(value) > 0):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise PydanticCustomError("parallel", "must be auto or a number of at least 1")


Parallel = Annotated[Literal["auto"] | Annotated[int, Field(ge=1)], BeforeValidator(_parse_parallel)]


def _parse_models(value: object) -> object:
    """Read `auto`, a list of ids, or a map of alias to the upstream's own name.

    A list becomes a map of each id to itself.
    """
    if value == "auto":
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) and name for name in value):
        names = cast("list[str]", value)
        if len(set(names)) < len(names):
            raise PydanticCustomError("models", "contains a model twice")
        return {name: name for name in names}
    if (
        isinstance(value, dict)
        and value
        and all(isinstance(part, str) and part for pair in value.items() for part in pair)
    ):
        return value
    raise PydanticCustomError(
        "models", "must be auto, a list of model ids, or a map of each alias to the upstream's model id"
    )


Models = Annotated[
    Literal["auto"] | dict[str, str],
    BeforeValidator(_parse_models),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "auto"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
            ]
        }
    ),
]


def _parse_paths(value: object) -> object:
    if value in ("default", "all"):
        return value
    if isinstance(value, list | tuple) and all(isinstance(path, str) and path.startswith("/") for path in value):
        return tuple(value)
    raise PydanticCustomError("paths", "must be default, all, or a list of paths that begin with /")


Paths = Annotated[Literal["default", "all"] | tuple[str, ...], BeforeValidator(_parse_paths)]

"""The operations of the paths that are passed through, as far as they are known."""

from __future__ import annotations

import re

from nproxy.config import Passthrough
from nproxy.gateway.openapi.fragments import Fragment, fragment
from nproxy.gateway.paths import DEFAULT_PASSTHROUGH, passes

_PARAMETER = re.compile(r"\{(\w+)\}")
_WITHOUT_BODY = frozenset({"get", "delete"})


def passed(settings: Passthrough) -> Fragment:
    """Return paths with their operations: the known ones that are passed through, and others from the configuration."""
    known = {path: methods for path, methods in fragment("passthrough").items() if passes(settings, path)}
    opened = DEFAULT_PASSTHROUGH if isinstance(settings.paths, str) else settings.paths
    unknown = [root.rstrip("/") for root in opened if not any(_below(path, root) for path in known)]
    return {
        path: {method: _operation(path, method, documented) for method, documented in methods.items()}
        for path, methods in {**known, **{path: _any(path) for path in unknown if path}}.items()
    }


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _any(path: str) -> Fragment:
    """Return the operations of a path about which nothing is known."""
    name = re.sub(r"\W+", "_", path).strip("_")
    return {
        method: {"operationId": f"{method}_{name}", "summary": "A path of the server"} for method in ("get", "post")
    }


def _operation(path: str, method: str, documented: Fragment) -> Fragment:
    operation = {key: part for key, part in documented.items() if key != "x-body"} | {"tags": ["Passed through"]}
    names = _PARAMETER.findall(path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if method not in _WITHOUT_BODY:
        kind = documented.get("x-body", "application/json")
        operation["requestBody"] = {"content": {kind: {"schema": {"type": "object", "additionalProperties": True}}}}
    errors: Fragment = fragment("paths")["x-errors"]
    forbidden = {"x-when": "auth", "$ref": "#/components/responses/Forbidden"}
    return {**operation, "responses": {"200": {"$ref": "#/components/responses/Passed"}, "403": forbidden, **errors}}

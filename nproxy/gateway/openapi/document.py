"""Makes the OpenAPI document of the gateway from a configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nproxy import __version__
from nproxy.config import Config
from nproxy.config.engine import DEFAULT_MODEL
from nproxy.gateway.openapi.fragments import Fragment, fragment, settled
from nproxy.gateway.openapi.passed import passed
from nproxy.gateway.openapi.shapes import MODELS, completed
from nproxy.openai.requests import MAX_BEST_OF

PLACEHOLDER = "MODEL"
"""The model of examples if the configuration names none that anybody may know; pages/docs/examples.js looks for it."""


def gateway_document(config: Config) -> Fragment:
    """Return the OpenAPI document of the gateway's own port."""
    head, answers = fragment("head"), fragment("responses")
    document = {
        **head,
        "security": _security(config),
        "paths": {**fragment("paths")["paths"], **passed(config.passthrough)},
        "components": {
            **head["components"],
            "headers": answers["headers"],
            "responses": answers["responses"],
            "schemas": {**completed(fragment("requests")["schemas"], MODELS), **fragment("answers")["schemas"]},
        },
    }
    return finished(document, _facts(config), _values(config))


def finished(document: Fragment, facts: Iterable[str], values: Fragment) -> Fragment:
    """Return the document with the parts that apply, and only the components that they refer to.

    facts, values: see `settled`.
    """
    whole: Fragment = settled(document, frozenset(facts), values)
    whole["info"]["version"] = __version__
    components: Fragment = whole.pop("components")
    schemes = components.pop("securitySchemes")
    kept: dict[str, Fragment] = {}
    open_ends = [whole]
    while open_ends:
        for kind, name in _referred(open_ends.pop()):
            if name not in kept.setdefault(kind, {}):
                kept[kind][name] = components[kind][name]
                open_ends.append(components[kind][name])
    used = {kind: dict(sorted(members.items())) for kind, members in kept.items()}
    return {**whole, "components": {"securitySchemes": schemes, **used} if schemes else used}


def _referred(node: Any) -> Iterable[tuple[str, str]]:
    """Yield the kind and the name of each component that a part refers to."""
    if isinstance(node, list):
        for member in node:
            yield from _referred(member)
    elif isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str):
            _, _, kind, name = reference.split("/")
            yield kind, name
        for member in node.values():
            yield from _referred(member)


def _facts(config: Config) -> list[str]:
    """Return the words of `x-when` that are true for a configuration."""
    limits = config.limits
    rates = (limits.requests_per_minute, limits.choices_per_minute, limits.tokens_per_minute)
    own_keys = config.auth is not None and config.auth.api_keys_file is not None
    holds = {
        "auth": config.auth is not None,
        "keys": bool(_security(config)),
        "own": config.admin is None,
        "metrics": config.telemetry.metrics,
        "docs": config.pages.docs,
        "playground": config.pages.playground,
        "partial": config.n_policy.on_leg_failure == "partial",
        "rates": own_keys or any(rate is not None for rate in rates),
    }
    return [name for name, so in holds.items() if so]


def _security(config: Config) -> list[dict[str, list[str]]]:
    """Return the alternative ways to authenticate; an empty one means that none is needed."""
    if config.auth is not None:
        return [{"bearer": []}, {"api-key": []}, {"x-api-key": []}]
    passed_on = any(upstream.api_key == "passthrough" for upstream in config.upstreams)
    return [{}, {"bearer": []}] if passed_on else []


def _values(config: Config) -> Fragment:
    widest = config.n_policy.max_n
    values = {"max_n": widest, "best_of": min(MAX_BEST_OF, widest)}
    return {**values, "model": _example(config)}


def _example(config: Config) -> str:
    """Return a model for examples, if the configuration names one and needs no keys; else a placeholder."""
    if config.auth is not None:
        return PLACEHOLDER
    if config.engine is not None and config.engine.model == DEFAULT_MODEL:
        return DEFAULT_MODEL
    named = (name for upstream in config.upstreams if upstream.models != "auto" for name in upstream.models)
    return next(named, PLACEHOLDER)

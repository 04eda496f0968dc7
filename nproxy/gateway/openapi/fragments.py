"""The hand-written parts of the document, and the selection of those that apply to a configuration.

Two keywords are evaluated here and never appear in the document. `x-when: own metrics` in an object: it is kept only if
both facts are true. `{x-value: max_n}`: it is replaced by the configuration's value; if there is none, its key is left
out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

Fragment = dict[str, Any]

WHEN, VALUE = "x-when", "x-value"

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if PyYAML was built with it


@cache
def fragment(name: str) -> Fragment:
    """Return the content of one of the files. It is cached and must not be changed."""
    text = files(__package__).joinpath(f"{name}.yaml").read_text("utf-8")
    loaded: Fragment = yaml.load(text, _Loader)  # noqa: S506 - both loaders are the safe one
    return loaded


def settled(node: Any, facts: Collection[str], values: Mapping[str, object]) -> Any:
    """Return a copy of a node with only the parts that apply.

    facts: the words of `x-when` that are true. values: what `x-value` is replaced by.
    """
    if isinstance(node, list):
        return [settled(member, facts, values) for member in node if _stands(member, facts, values)]
    if not isinstance(node, dict):
        return node
    if VALUE in node:
        return values[node[VALUE]]
    return {
        key: settled(member, facts, values)
        for key, member in node.items()
        if key != WHEN and _stands(member, facts, values)
    }


def _stands(node: Any, facts: Collection[str], values: Mapping[str, object]) -> bool:
    if not isinstance(node, dict):
        return True
    return all(fact in facts for fact in node.get(WHEN, "").split()) and (VALUE not in node or node[VALUE] in values)

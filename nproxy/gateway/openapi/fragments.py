"""The hand-kept parts of the document, and what of them holds for a configuration.

Two words are read here and never shown. `x-when: own metrics` in an object: it stands only where both facts hold.
`{x-value: max_n}`: the configuration's value stands there; where it has none, nor does the key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

Fragment = dict[str, Any]

WHEN, VALUE = "x-when", "x-value"

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with it


@cache
def fragment(name: str) -> Fragment:
    """One of the files, as it is; not to be changed."""
    text = files(__package__).joinpath(f"{name}.yaml").read_text("utf-8")
    loaded: Fragment = yaml.load(text, _Loader)  # noqa: S506 - both loaders are the safe one
    return loaded


def settled(node: Any, facts: Collection[str], values: Mapping[str, object]) -> Any:
    """The same as new objects, with what holds only. facts: what is so; values: what there is to fill in."""
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

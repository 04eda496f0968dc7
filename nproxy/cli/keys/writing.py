"""Adds a hash to a file of keys; the rest of the text stays as it is, including comments."""

from __future__ import annotations

from typing import Any

import yaml


def with_hash(text: str, name: str, digest: str) -> str:
    """Return the text of a keys file with the hash added to the entry of `name`, or with a new entry at the end.

    text: a valid file, or the empty string. digest: `sha256:...`.
    """
    root = yaml.compose(text, Loader=yaml.BaseLoader)
    if not isinstance(root, yaml.MappingNode):
        return f"{text}keys:\n- name: {name}\n  hash: {digest}\n"
    entries = _value(root, "keys")
    for entry in entries.value:
        if _value(entry, "name").value == name:
            return _with_item(text, _value(entry, "hash"), digest)
    if entries.flow_style:
        return _with_item(text, entries, f"{{name: {name}, hash: {digest}}}")
    return _with_item(text, entries, f"name: {name}\n{' ' * entries.start_mark.column}  hash: {digest}")


def _value(mapping: yaml.MappingNode, key: str) -> Any:
    """Return the value of a key that is known to exist."""
    return next(value for name, value in mapping.value if name.value == key)


def _with_item(text: str, node: yaml.Node, item: str) -> str:
    """Return the text with one more item at the end of a list; a value that is not a list becomes one."""
    begins, ends = node.start_mark.index, node.end_mark.index
    if not isinstance(node, yaml.SequenceNode):
        return f"{text[:begins]}[{text[begins:ends]}, {item}]{text[ends:]}"
    last = _end(node.value[-1])
    if node.flow_style:
        return f"{text[:last]}, {item}{text[last:]}"
    line_ends = text.find("\n", last)
    before, after = (text + "\n", "") if line_ends < 0 else (text[: line_ends + 1], text[line_ends + 1 :])
    return f"{before}{' ' * node.start_mark.column}- {item}\n{after}"


def _end(node: yaml.Node) -> int:
    """Return the end of a node's text: the parser counts blank lines and comments after a block as part of it."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)

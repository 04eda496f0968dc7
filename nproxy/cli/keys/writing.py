"""Adds to a file of keys, and removes from it; the rest of the text stays as it is, including comments."""

from __future__ import annotations

from typing import Any

import yaml

from nproxy.cli.wrong_use import WrongUse


def with_hash(text: str, name: str, digest: str) -> str:
    """Return the text of a keys file with the hash added to the entry of `name`, or with a new entry at the end.

    text: a valid file, or the empty string. digest: `sha256:...`.
    """
    root = _root(text)
    if not isinstance(root, yaml.MappingNode):
        return f"{text}keys:\n- name: {name}\n  hash: {digest}\n"
    entries = _value(root, "keys")
    for entry in entries.value:
        if _value(entry, "name").value == name:
            return _with_item(text, _value(entry, "hash"), digest)
    if entries.flow_style:
        return _with_item(text, entries, f"{{name: {name}, hash: {digest}}}")
    return _with_item(text, entries, f"name: {name}\n{' ' * entries.start_mark.column}  hash: {digest}")


def without_entry(text: str, position: int) -> str:
    """Return the text of a keys file without one of its entries. text: a valid file with more than this entry.

    Raises WrongUse if it is written in a way that cannot be changed here.
    """
    data = yaml.safe_load(text)
    del data["keys"][position]
    return _as(data, _without_item(text, _value(_root(text), "keys"), position))


def without_hash(text: str, position: int, at: int) -> str:
    """Return the text of a keys file without a hash of one entry. text: a valid file; the entry has more hashes.

    Raises WrongUse if it is written in a way that cannot be changed here.
    """
    data = yaml.safe_load(text)
    del data["keys"][position]["hash"][at]
    return _as(data, _without_item(text, _value(_value(_root(text), "keys").value[position], "hash"), at))


def _root(text: str) -> yaml.Node | None:
    return yaml.compose(text, Loader=yaml.BaseLoader)


def _as(data: object, text: str) -> str:
    """Return the text if it says just this. What aliases refer to, for example, stands elsewhere."""
    try:
        if yaml.safe_load(text) == data:
            return text
    except yaml.YAMLError:
        pass
    raise WrongUse("the file is written in a way that this command cannot change; please edit it")


def _value(mapping: Any, key: str) -> Any:
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


def _without_item(text: str, node: yaml.SequenceNode, position: int) -> str:
    """Return the text without one item of a list that has more of them."""
    item = node.value[position]
    if not node.flow_style:
        begins = _line_of_dash(text, item.start_mark.index, node.start_mark.column)
        line_ends = text.find("\n", _end(item))
        return text[:begins] + ("" if line_ends < 0 else text[line_ends + 1 :])
    if position + 1 < len(node.value):
        return text[: item.start_mark.index] + text[node.value[position + 1].start_mark.index :]
    return text[: _end(node.value[position - 1])] + text[_end(item) :]


def _line_of_dash(text: str, index: int, column: int) -> int:
    """Return the begin of the line in which the item at `index` has its dash, which may stand in an earlier line."""
    begins = text.rfind("\n", 0, index) + 1
    while begins and text[begins + column] != "-":
        begins = text.rfind("\n", 0, begins - 1) + 1
    return begins


def _end(node: yaml.Node) -> int:
    """Return the end of a node's text: the parser counts blank lines and comments after a block as part of it."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)

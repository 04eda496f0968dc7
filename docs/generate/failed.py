"""What clients are told about failing upstreams: the messages of every `Failure` in the code, by kind."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from nproxy.choices.events import FailureKind

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("nproxy/choices", "nproxy/upstreams")
_MAKERS = {"malformed": FailureKind.MALFORMED, "oversize": FailureKind.OVERSIZE, "_connect": FailureKind.CONNECT}
"""Functions of upstreams/failures.py that take only a message."""


@cache
def failed() -> Mapping[FailureKind, Sequence[str]]:
    """Return the messages by kind, each once, sorted; a value known only at run time stays as `{name}`."""
    files = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    modules = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    everywhere = {
        name: value for module in modules for name, value in _assigned(module.body).items()
    }  # the modules import constants from each other
    found: defaultdict[FailureKind, set[str]] = defaultdict(set)
    for module in modules:
        for kind, message in _made(module, everywhere | _assigned(module.body)):
            found[kind].add(message)
    return {kind: sorted(messages) for kind, messages in found.items()}


def _made(module: ast.Module, known: Mapping[str, ast.expr]) -> Iterator[tuple[FailureKind, str]]:
    constants = [node for node in module.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    scopes = [
        *constants,
        *(node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)),
    ]
    for scope in scopes:
        names = {**known, **_assigned(ast.walk(scope))}
        for node in ast.walk(scope):
            match node:
                case ast.Call(func=ast.Name(id="Failure"), args=[kind, message, *_]):
                    yield from ((one, text) for one in _kinds(kind, scope) for text in _texts(message, names))
                case ast.Call(func=ast.Name(id=maker), args=[message, *_]) if maker in _MAKERS:
                    yield from ((_MAKERS[maker], text) for text in _texts(message, names))


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = value
    return found


def _kinds(node: ast.expr, scope: ast.AST) -> set[FailureKind]:
    """Return the kinds that an expression may be; for a name, all kinds that are assigned to it."""
    named = [node]
    if isinstance(node, ast.Name):
        assigned = (each for each in ast.walk(scope) if isinstance(each, ast.Assign))
        named = [each.value for each in assigned if ast.unparse(each.targets[0]) == node.id]
    words = (each for one in named for each in ast.walk(one) if isinstance(each, ast.Attribute))
    return {FailureKind[word.attr] for word in words if ast.unparse(word.value) == "FailureKind"}


def _texts(node: ast.expr, names: Mapping[str, ast.expr]) -> list[str]:
    """Return all texts that a message may be; none if it comes from elsewhere."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            texts = [""]
            for part in parts:
                inner = part.value if isinstance(part, ast.FormattedValue) else part
                known = _texts(inner, names) or [f"{{{ast.unparse(inner).rpartition('.')[2].lstrip('_')}}}"]
                texts = [text + more for text in texts for more in known]
            return texts
        case ast.Subscript(value=ast.Name(id=name)) if isinstance(entries := names.get(name), ast.Dict):
            return [text for value in entries.values for text in _texts(value, names)]
        case ast.IfExp(body=one, orelse=other):
            return _texts(one, names) + _texts(other, names)
        case ast.Name(id=name) if name in names:
            return _texts(names[name], {key: value for key, value in names.items() if key != name})
    return []

"""Every error that the code can answer with, read from the calls that make one.

A call of `ApiError` has status, type, code, param and message. Most are made by a function that returns an `ApiError`
(`invalid_request`, `model_not_found` ...), a maker: a call of a maker is followed into it, with the arguments in place
of its parameters. A value known only at run time stays as `{name}`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("nproxy", "engine")
_ERROR = "ApiError"
_FIELDS = ("status", "message", "type", "param", "code")


@dataclass(frozen=True)
class Open:
    """A value known only at run time, with its name in the code."""

    name: str

    def __str__(self) -> str:
        return f"{{{self.name}}}"


Value = int | str | float | bytes | None | Open
Names = Mapping[str, Value]
World = Mapping[str, bool]
"""The outcome of each condition of a function's `a if condition else b`; equal conditions have the same outcome."""


@dataclass(frozen=True)
class Raised:
    """One error: the module whose call made it, and the fields of the envelope."""

    module: str
    status: int
    type: str
    message: Value
    param: Value
    code: Value


@cache
def raised() -> tuple[Raised, ...]:
    """Return all errors in the order of modules and lines, each once."""
    return tuple(dict.fromkeys(_Reader(dict(_modules())).errors()))


def _modules() -> Iterator[tuple[str, _Module]]:
    for file in (file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        yield name, _Module(name, file.read_text(encoding="utf-8"))


Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Module:
    """The names in a module's functions: its imports, constants and makers."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.imported: dict[str, tuple[str, str]] = {}
        self.constants: dict[str, ast.expr] = {}
        self.makers: dict[str, Function] = {}
        self.functions: list[Function] = []
        if _ERROR not in source and "nproxy.openai" not in source:
            return
        tree = ast.parse(source)
        self.constants = _assigned(tree.body)
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom(module=str(origin), names=names):
                    self.imported |= {alias.asname or alias.name: (origin, alias.name) for alias in names}
                case ast.ClassDef(name=name, bases=[ast.Name(id="ApiError")]):
                    self.makers[name] = next(inner for inner in node.body if isinstance(inner, ast.FunctionDef))
                case ast.FunctionDef(returns=returns) | ast.AsyncFunctionDef(returns=returns):
                    self.functions.append(node)
                    if returns is not None and _ERROR in ast.unparse(returns).split(" | "):
                        self.makers[node.name] = node


def _assigned(body: Iterable[ast.stmt]) -> dict[str, ast.expr]:
    """Return the values that these statements assign to names."""
    found: dict[str, ast.expr] = {}
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = value
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value) if name in found:
                found[name] = ast.BinOp(found[name], op, value)
    return found


@dataclass(frozen=True)
class _Reader:
    modules: Mapping[str, _Module]

    def errors(self) -> Iterator[Raised]:
        """Yield the errors of all calls; a maker that others call is read at its calls."""
        for module in self.modules.values():
            for function in module.functions:
                if (module.name, function.name) not in self._called:
                    yield from self._made(module, function, {})

    @cached_property
    def _called(self) -> set[tuple[str, str]]:
        found = set()
        for module in self.modules.values():
            for call in (call for function in module.functions for call in _calls(function)):
                maker = self._maker(module, call.func)
                if maker is not None:
                    found.add((maker[0].name, maker[1].name))
        return found

    def _made(self, module: _Module, function: Function, given: Names) -> Iterator[Raised]:
        """Yield the errors of the calls in a function with these parameters."""
        calls = [(call, self._maker(module, call.func)) for call in _calls(function)]
        calls = [(call, maker) for call, maker in calls if maker is not None or _makes_error(call.func)]
        for world, (call, maker) in product(_worlds(function), calls):
            names = self._names(module, function, call.lineno, given, world)
            values = {word.arg: self._value(module, word.value, names, world) for word in call.keywords if word.arg}
            places = [self._value(module, word, names, world) for word in call.args]
            if maker is None:
                match {**dict.fromkeys(_FIELDS), **dict(zip(_FIELDS, places, strict=False)), **values}:
                    case {"status": int(status), "type": str(kind), **rest}:  # others repeat what such a call made
                        yield Raised(module.name, status, kind, rest["message"], rest["param"], rest["code"])
            else:
                room, inside = maker
                arguments = [word.arg for word in inside.args.args if word.arg != "self"]
                told = {**self._defaults(room, inside), **dict(zip(arguments, places, strict=False)), **values}
                yield from (replace(error, module=module.name) for error in self._made(room, inside, told))

    def _maker(self, module: _Module, called: ast.expr) -> tuple[_Module, Function] | None:
        match called:
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name) if name in module.makers:
                return module, module.makers[name]
            case ast.Name(id=name) if name in module.imported:
                origin, there = module.imported[name]
                return self._maker(self.modules[origin], ast.Name(there)) if origin in self.modules else None
        return None

    def _defaults(self, module: _Module, function: Function) -> Names:
        arguments, defaults = function.args.args, function.args.defaults
        pairs = [*zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)]
        pairs += [
            (a, d) for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d is not None
        ]
        return {argument.arg: self._value(module, default, {}, {}) for argument, default in pairs}

    def _names(self, module: _Module, function: Function, line: int, given: Names, world: World) -> Names:
        """Return the values of a function's names at a line: those assigned last above it."""
        names = dict(given)
        above = [statement for statement in _statements(function) if statement.lineno < line]
        for name, value in _assigned(above).items():
            names[name] = self._value(module, value, names, world)
        return names

    def _value(self, module: _Module, node: ast.expr, names: Names, world: World) -> Value:
        """Return a value as far as the code determines it."""
        match node:
            case ast.Constant(value=int() | str() | float() | None as value):
                return value
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.Name(id=name) if name in module.constants:
                return self._value(module, module.constants[name], {}, world)
            case ast.Name(id=name) if name in module.imported:
                origin, there = module.imported[name]
                return (
                    self._value(self.modules[origin], ast.Name(there), {}, world)
                    if origin in self.modules
                    else Open(name)
                )
            case ast.IfExp(test=test, body=one, orelse=other):
                return self._value(module, one if world.get(ast.unparse(test), True) else other, names, world)
            case ast.BoolOp(op=ast.Or(), values=[*values]):
                told = [self._value(module, value, names, world) for value in values]
                return next((value for value in told if value is not None), None)
            case ast.JoinedStr(values=parts):
                return "".join(str(self._value(module, part, names, world)) for part in parts)
            case ast.FormattedValue(value=value):
                return self._value(module, value, names, world)
            case ast.BinOp(left=left, op=op, right=right):
                return _joined(op, self._value(module, left, names, world), self._value(module, right, names, world))
            case ast.Call(func=ast.Name(id="shorten" | "str" | "_number"), args=[only, *_]):  # the value, formatted
                return self._value(module, only, names, world)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return Open(name.lstrip("_"))
        return Open("…")


def _joined(op: ast.operator, one: Value, other: Value) -> Value:
    match op, one, other:
        case ast.Mult(), int(), int():
            return one * other
        case ast.LShift(), int(), int():
            return one << other
        case ast.Pow(), int(), int():
            return float(one) ** other if other < 0 else int(one**other)
        case ast.Add(), str() | Open(), str() | Open():
            return f"{one}{other}"
    return Open("…")


def _makes_error(called: ast.expr) -> bool:
    return ast.unparse(called) in (_ERROR, "super().__init__")


@cache
def _calls(function: Function) -> tuple[ast.Call, ...]:
    return tuple(node for node in ast.walk(function) if isinstance(node, ast.Call))


@cache
def _statements(function: Function) -> list[ast.stmt]:
    statements = (node for node in ast.walk(function) if isinstance(node, ast.stmt))
    return sorted(statements, key=lambda statement: statement.lineno)


@cache
def _worlds(function: Function) -> list[World]:
    tests = sorted({ast.unparse(node.test) for node in ast.walk(function) if isinstance(node, ast.IfExp)})
    return [dict(zip(tests, falls, strict=True)) for falls in product((True, False), repeat=len(tests))]

"""The settings as a JSON schema, each key described by the docstring below it in the source.

Pydantic would read these docstrings (`use_attribute_docstrings`) at every start of a process, which takes 25 to 40 ms.
They are read here, only when the schema is asked for.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from nproxy.config.sections import Settings
from nproxy.config.settings import Config


def schema(file: type[Settings] = Config) -> dict[str, Any]:
    """Return the schema of the settings file, or of another kind of file."""
    whole = file.model_json_schema()
    definitions = {file.__name__: whole, **whole["$defs"]}
    for section in Settings.__subclasses__():
        properties = definitions.get(section.__name__, {}).get("properties", {})
        for name, text in _docstrings(section):
            if name in properties:
                properties[name] = {"description": text, **properties[name]}
    return whole


def _docstrings(section: type[Settings]) -> Iterator[tuple[str, str]]:
    """Yield the keys that a type declares with a docstring below them, and that docstring."""
    nodes = (node for node in ast.walk(ast.parse(inspect.getsource(section))) if isinstance(node, ast.ClassDef))
    for statement, behind in pairwise(next(nodes).body):
        match statement, behind:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)

"""The schemas of requests: types from the pydantic models that parse them, texts written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from nproxy.gateway.openapi.fragments import Fragment
from nproxy.openai.choice_params import Params
from nproxy.openai.requests import SentChat, SentCompletion, StreamOptions

MODELS: Mapping[str, type] = {
    "chat": SentChat,
    "choice_params": Params,
    "completion": SentCompletion,
    "stream_options": StreamOptions,
}
"""The models by the value of `x-model` in the fragments."""

_REFERENCE = "#/components/schemas/{model}"


def completed(schemas: Fragment, models: Mapping[str, type]) -> Fragment:
    """Return the schemas, completed by the types of the models that they name."""
    return {name: _completed(schema, models) if "x-model" in schema else schema for name, schema in schemas.items()}


def _completed(schema: Fragment, models: Mapping[str, type]) -> Fragment:
    """Return a schema with types; required fields come first.

    A hand-written type is kept, because the model's type is that of the converted value and not of the JSON.
    """
    typed = properties_of(models[schema["x-model"]])
    written: Fragment = schema["properties"]
    types = {name: type for name, type in typed.items() if "type" not in written.get(name, {})}
    fields = {name: {**written.get(name, {}), **types.get(name, {})} for name in (*written, *types)}
    first = {name: fields[name] for name in schema.get("required", ())}
    return {key: part for key, part in schema.items() if key != "x-model"} | {"properties": {**first, **fields}}


def properties_of(model: type) -> Fragment:
    """Return the fields of a model as the properties of a schema."""
    return {name: _plain(schema) for name, schema in _schema(model).items()}


def _schema(model: type) -> Fragment:
    properties: Fragment = TypeAdapter(model).json_schema(ref_template=_REFERENCE)["properties"]
    return properties


def _plain(schema: Any) -> Any:
    """Remove the titles and null defaults that pydantic adds, and write a nullable type as one list of types."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _plain(part) for key, part in schema.items() if key != "title" and (key, part) != ("default", None)}
    match plain.get("anyOf"):
        case [{"type": str(type), **rest}, {"type": "null"}]:
            del plain["anyOf"]
            return {**plain, "type": [type, "null"], **rest}
    return plain

"""Whether requests and answers are as the document says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
from jsonschema import Draft202012Validator

Document = dict[str, Any]


def problems(document: Document, schema: object, value: object) -> list[str]:
    """What of a value is not as a schema of the document says."""
    whole = {"components": document["components"], "allOf": [schema]}
    found = Draft202012Validator(whole).iter_errors(value)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


def request_problems(document: Document, path: str, body: object) -> list[str]:
    content = document["paths"][path]["post"]["requestBody"]["content"]
    return problems(document, content["application/json"]["schema"], body)


def answer_problems(document: Document, method: str, path: str, answer: httpx.Response) -> list[str]:
    """The same of a whole answer: its status, its headers, its body, and each event of a stream."""
    responses = document["paths"][path][method]["responses"]
    said = resolved(document, responses.get(str(answer.status_code), responses.get("default", {})))
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if not answer.content and "content" not in said:
        return []
    if kind not in said.get("content", {}):
        return [f"{answer.status_code} {kind!r} is not described"]
    schema = said["content"][kind]["schema"]
    found = [f"x-nproxy header {name}" for name in answer.headers if _is_ours(name) and name not in said["headers"]]
    for name, header in said.get("headers", {}).items():
        if name in answer.headers:
            shape = resolved(document, header)["schema"]
            value: object = answer.headers[name]
            found += problems(document, shape, int(answer.headers[name]) if shape["type"] == "integer" else value)
    for value in _values(kind, answer):
        found += problems(document, schema, value)
    return found


def resolved(document: Document, node: Document) -> Document:
    """What a reference refers to; anything else as it is."""
    if "$ref" not in node:
        return node
    _, _, kind, name = node["$ref"].split("/")
    component: Document = document["components"][kind][name]
    return component


def operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    """Path, method and operation of each."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _is_ours(name: str) -> bool:
    return name.lower().startswith("x-nproxy-")


def _values(kind: str, answer: httpx.Response) -> list[object]:
    """The body as the values that the schema is about."""
    if kind == "text/event-stream":
        events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
        return [json.loads(event) for event in events if event != "[DONE]"]
    return [answer.json()] if kind == "application/json" else [answer.text]

"""/openapi.json: a good document of the configuration that is served, and of nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from nproxy.config import Config
from nproxy.gateway.admin.document import admin_document
from nproxy.gateway.openapi.document import gateway_document
from nproxy.gateway.openapi.shapes import MODELS, properties_of
from tests.gateway.openapi.described import operations, problems

UPSTREAM = {"name": "fleet", "replicas": ["http://10.0.0.1:8000/v1"]}
TOKEN = {"host": "127.0.0.1", "token": "s" * 20}

CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "an upstream": {"upstreams": [UPSTREAM]},
    "a key": {"upstreams": [UPSTREAM], "auth": {"api_key": "k" * 20}},
    "an admin port": {"upstreams": [UPSTREAM], "admin": {}},
    "an admin port with a token": {"upstreams": [UPSTREAM], "admin": TOKEN},
    "no pages, no metrics": {"pages": {"playground": False, "docs": False}, "telemetry": {"metrics": False}},
    "partial": {"n_policy": {"on_leg_failure": "partial"}, "limits": {"requests_per_minute": 5}},
    "no other paths": {"passthrough": {"paths": []}},
    "some paths": {"passthrough": {"paths": ["/v1/embeddings", "/v1/audio/", "/v1/own", "/custom/thing"]}},
    "all paths": {"passthrough": {"paths": "all"}},
}

EVERYTHING = ("a key", "an admin port with a token", "partial", "some paths")


def gateway(**config: Any) -> dict[str, Any]:
    return gateway_document(Config.model_validate(config))


@pytest.mark.parametrize("names", [("default",), ("no pages, no metrics", "all paths"), EVERYTHING])
def test_it_is_a_good_document(names: tuple[str, ...]) -> None:
    config = Config.model_validate({key: value for name in names for key, value in CONFIGS[name].items()})
    OpenAPIV31SpecValidator(gateway_document(config)).validate()
    OpenAPIV31SpecValidator(admin_document(config)).validate()


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_is_left_of_the_words_that_are_read_here(name: str) -> None:
    config = Config.model_validate(CONFIGS[name])
    for document in (gateway_document(config), admin_document(config)):
        assert {key for key in _keys(document) if re.match(r"x-(?!request|nproxy|ratelimit|should|api)", key)} == set()


def test_every_description_is_whole() -> None:
    """In YAML's flow form a comma would end it, and what follows becomes a key without a value."""
    for document in (gateway(**CONFIGS["a key"]), admin_document(Config.model_validate(CONFIGS["an admin port"]))):
        assert [key for key, value in _members(_without_examples(document)) if value is None] == []


@pytest.mark.parametrize("names", [("default",), EVERYTHING])
def test_a_generator_of_clients_gets_a_type_for_everything(names: tuple[str, ...]) -> None:
    """openapi-typescript takes an object without further words for an empty one, so that no field can be sent in it;
    openapi-python-client leaves out whole operations because of a list without items, and cannot import a nullable
    component.
    """
    config = Config.model_validate({key: value for name in names for key, value in CONFIGS[name].items()})
    for document in (gateway_document(config), admin_document(config)):
        for name, node in _members(_without_examples(document)):
            if not isinstance(node, dict) or "type" not in node:
                continue
            if "object" in node["type"]:
                assert {"properties", "additionalProperties"} & node.keys(), (name, node)
            if "array" in node["type"]:
                assert "items" in node, (name, node)
        schemas = document["components"]["schemas"]
        assert [name for name, schema in schemas.items() if "null" in schema.get("type", ())] == []


def test_what_passes_is_described_as_json_too() -> None:
    """Generators of clients cannot read an answer of any type."""
    for path, method, operation in operations(gateway()):
        if operation["tags"] == ["Passed through"]:
            reference = operation["responses"]["200"]["$ref"].rpartition("/")[2]
            assert "application/json" in gateway()["components"]["responses"][reference]["content"], (path, method)


def test_writing_it_changes_no_fragment() -> None:
    assert gateway() == gateway()
    assert "401" not in gateway()["paths"]["/v1/models"]["get"]["responses"]
    assert "401" in gateway(auth={"api_key": "k" * 20})["paths"]["/v1/models"]["get"]["responses"]
    assert "401" not in gateway()["paths"]["/v1/models"]["get"]["responses"]


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_field_that_is_read_is_described(model: str) -> None:
    name = {"chat": "ChatRequest", "completion": "CompletionRequest", "stream_options": "StreamOptions"}
    schema = gateway()["components"]["schemas"][name.get(model, "ChoiceParams")]
    for field, types in properties_of(MODELS[model]).items():
        assert schema["properties"][field].get("description"), field
        assert types.items() <= schema["properties"][field].items(), "its type is the model's"


@pytest.mark.parametrize(("max_n", "best_of"), [(8, 8), (128, 20)])
def test_the_widest_n_is_the_configured_one(max_n: int, best_of: int) -> None:
    for name in ("ChatRequest", "CompletionRequest"):
        fields = gateway(n_policy={"max_n": max_n})["components"]["schemas"][name]["properties"]
        assert [fields[field]["maximum"] for field in ("n", "n_cmpl", "best_of")] == [max_n, max_n, best_of]
        assert fields["choice_params"]["maxItems"] == max_n


def test_a_key_is_asked_for_where_the_gateway_wants_one() -> None:
    document = gateway(**CONFIGS["a key"])
    assert document["security"] == [{"bearer": []}, {"api-key": []}, {"x-api-key": []}]
    open_ones = {path for path, _, operation in operations(document) if operation.get("security") == []}
    assert open_ones == {"/health", "/ready", "/openapi.json", "/docs", "/"}
    assert gateway()["security"] == []
    assert "securitySchemes" not in gateway()["components"]
    assert gateway(upstreams=[UPSTREAM])["security"] == [{}, {"bearer": []}], "it goes on to the upstream"


def test_a_model_is_named_only_where_anybody_may_know() -> None:
    named = {"upstreams": [{**UPSTREAM, "models": ["secret-model"]}]}
    assert "secret-model" in str(gateway(**named))
    assert "secret-model" not in str(gateway(**named, auth={"api_key": "k" * 20}))
    assert "smollm2-135m-instruct" in str(gateway())


def test_what_the_admin_port_has_taken_is_not_on_the_gateways() -> None:
    here, there = set(gateway(admin={})["paths"]), set(admin_document(Config.model_validate({"admin": {}}))["paths"])
    assert not {"/metrics", "/status"} & here
    assert {"/metrics", "/status", "/admin/upstreams/{upstream}/replicas"} <= there


def test_the_paths_that_pass_are_the_configured_ones() -> None:
    def passed(**settings: Any) -> set[str]:
        document = gateway(passthrough=settings)
        return {path for path, _, operation in operations(document) if operation["tags"] == ["Passed through"]}

    assert {"/v1/embeddings", "/v1/audio/speech", "/tokenize"} <= passed()
    assert passed(paths=[]) == set()
    assert passed(paths=["/v1/audio/", "/own"]) == {
        "/v1/audio/speech",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/own",
    }


def test_what_is_switched_off_is_not_there() -> None:
    assert not {"/", "/docs", "/metrics"} & set(gateway(**CONFIGS["no pages, no metrics"])["paths"])
    headers = gateway()["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["headers"]
    assert "x-nproxy-partial" not in headers
    partial = gateway(**CONFIGS["partial"])["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["headers"]
    assert {"x-nproxy-partial", "x-ratelimit-limit-requests"} <= partial.keys()


def test_every_example_is_as_its_schema_says() -> None:
    document = gateway(**CONFIGS["an upstream"])
    seen = 0
    for _, node in _members({"all": document}):
        if not isinstance(node, dict) or "schema" not in node:
            continue
        told = (
            [one["value"] for one in node.get("examples", {}).values()]
            if isinstance(node.get("examples"), dict)
            else []
        )
        for example in [*told, *([node["example"]] if "example" in node else [])]:
            value = {"model": "m", **example} if "choices" in example else example  # no model is named to try
            assert problems(document, node["schema"], value) == [], example
            seen += 1
    assert seen >= 15


def _without_examples(node: object) -> object:
    """In examples a null is a value."""
    if isinstance(node, list):
        return [_without_examples(member) for member in node]
    if not isinstance(node, dict):
        return node
    return {key: _without_examples(member) for key, member in node.items() if key not in ("example", "examples")}


def _keys(node: object) -> Iterator[str]:
    return (key for key, _ in _members(node))


def _members(node: object) -> Iterator[tuple[str, object]]:
    if isinstance(node, dict):
        for key, member in node.items():
            yield key, member
            yield from _members(member)
    elif isinstance(node, list):
        for member in node:
            yield from _members(member)

"""Routing by model, and the merged list."""

from __future__ import annotations

from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import Gateway, Start, envelope, gateway_for


async def test_Q1_unknown_model(gateway: Gateway, upstream: FakeUpstream) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        answer = await gateway.ask(path, model="nobody", n=2)
        assert answer.status_code == 404
        error = envelope(answer)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert upstream.calls == []


async def test_Q1_a_list_that_cannot_be_read_takes_any_model(start: Start, upstream: FakeUpstream) -> None:
    upstream.list_fails = True
    gateway = await start()
    assert (await gateway.ask(model="anything")).status_code == 200
    assert (await gateway.client.get("/ready")).status_code == 200, "it does answer"


async def test_Q2_an_alias_is_shown_as_the_client_asked(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(models={"mine": "theirs"})
    for n in (1, 2):
        whole = await gateway.ask(model="mine", n=n)
        assert whole.json()["model"] == "mine"
        streamed = await gateway.stream(model="mine", n=n)
        assert {chunk["model"] for chunk in streamed.chunks} == {"mine"}
    assert {call.body["model"] for call in upstream.calls} == {"theirs"}
    assert (await gateway.ask(model="theirs")).status_code == 404


async def test_Q9_the_merged_list() -> None:
    async with FakeUpstream(models=["a", "both"]) as one, FakeUpstream(models=["both", "org/b"]) as other:
        upstreams = [
            {"name": "one", "replicas": [one.url]},
            {"name": "other", "replicas": [other.url]},
            {"name": "third", "replicas": ["http://127.0.0.1:1/v1"], "models": ["named"]},
        ]
        async with gateway_for({"upstreams": upstreams}) as gateway:
            listed = (await gateway.client.get("/v1/models")).json()
            assert listed["object"] == "list"
            assert [entry["id"] for entry in listed["data"]] == ["a", "both", "org/b", "named"]
            assert all({"id", "object", "created", "owned_by"} <= entry.keys() for entry in listed["data"])
            for path in ("/v1/models/org/b", "/v1/models/org%2Fb"):
                assert (await gateway.client.get(path)).json()["id"] == "org/b"
            missing = await gateway.client.get("/v1/models/none")
            assert missing.status_code == 404
            assert envelope(missing)["code"] == "model_not_found"
            assert (await gateway.ask(model="org/b")).headers["x-nproxy-upstream"] == "other"
            assert (await gateway.ask(model="both")).headers["x-nproxy-upstream"] == "one"

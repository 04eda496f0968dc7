"""Group Q: routing by model, the merged model list, and the model names in metrics."""

from __future__ import annotations

import pytest

from tests.conformance.scene import Scene
from tests.conformance.settings import everywhere, of_http
from tests.fakes.behaviour import MODEL, Behaviour
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import CHAT, body, envelope, gateway_for


@everywhere
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_Q1_unknown_model(scene: Scene, path: str) -> None:
    await scene.start(models=[MODEL])
    error = await scene.refused(404, path, model="nobody")
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert scene.calls == []


@of_http
async def test_Q1_of_several_upstreams_none_lists_it() -> None:
    async with FakeUpstream(models=["a"]) as one, FakeUpstream(models=["b"]) as other:
        upstreams = [{"name": "one", "replicas": [one.url]}, {"name": "other", "replicas": [other.url]}]
        async with gateway_for({"upstreams": upstreams}) as gateway:
            for names, status, param in (({"model": "c"}, 404, "model"), ({"model": None}, 400, "model")):
                refused = await gateway.post({**body(**names), **names})
                assert refused.status_code == status and envelope(refused)["param"] == param
            assert not one.calls and not other.calls


@of_http
async def test_Q1_of_several_upstreams_one_without_a_list_takes_any_model() -> None:
    async with FakeUpstream(models=["a"]) as one, FakeUpstream() as other:
        other.list_fails = True
        upstreams = [{"name": "one", "replicas": [one.url]}, {"name": "other", "replicas": [other.url]}]
        async with gateway_for({"upstreams": upstreams}) as gateway:
            assert (await gateway.ask(model="anything")).headers["x-nproxy-upstream"] == "other"


@of_http
async def test_Q1_a_server_that_cannot_give_its_list_now_has_the_models_that_it_had() -> None:
    async with FakeUpstream(models=["a"]) as one, FakeUpstream(models=["b"]) as other:
        upstreams = [{"name": "one", "replicas": [one.url]}, {"name": "other", "replicas": [other.url]}]
        async with gateway_for({"upstreams": upstreams}) as gateway:
            for _ in range(2):
                assert (await gateway.ask(model="b")).headers["x-nproxy-upstream"] == "other"
                assert (await gateway.ask(model="typo")).status_code == 404
                assert [entry["id"] for entry in (await gateway.client.get("/v1/models")).json()["data"]] == ["a", "b"]
                one.list_fails = other.list_fails = True
                for upstream in gateway.app.upstreams.all:
                    upstream.models.outdated()


@of_http
async def test_Q1_a_name_without_a_tag_is_its_latest() -> None:
    """Ollama lists llama3.2:latest and accepts llama3.2."""
    async with FakeUpstream(models=["a"]) as one, FakeUpstream(models=["llama3.2:latest"]) as other:
        upstreams = [{"name": name, "replicas": [at.url]} for name, at in (("one", one), ("other", other))]
        async with gateway_for({"upstreams": upstreams}) as gateway:
            for n in (1, 2):
                answer = await gateway.ask(model="llama3.2", n=n)
                assert answer.headers["x-nproxy-upstream"] == "other" and answer.json()["model"] == "llama3.2"
            assert (await gateway.client.get("/v1/models/llama3.2")).json()["id"] == "llama3.2"
            assert 'model="llama3.2"' in (await gateway.client.get("/metrics")).text
            assert (await gateway.ask(model="llama3.2:1b")).status_code == 404


@of_http
async def test_Q1_a_name_that_is_listed_as_it_is_comes_before_one_that_is_meant() -> None:
    async with FakeUpstream(models=["qwen:latest"]) as one, FakeUpstream(models=["qwen"]) as other:
        upstreams = [{"name": name, "replicas": [at.url]} for name, at in (("one", one), ("other", other))]
        async with gateway_for({"upstreams": upstreams}) as gateway:
            assert (await gateway.ask(model="qwen")).headers["x-nproxy-upstream"] == "other"
            assert (await gateway.ask(model="qwen:latest")).headers["x-nproxy-upstream"] == "one"


@of_http
@pytest.mark.parametrize("fallback", [[], ["cloud"]])
async def test_Q1_a_fallback_does_not_come_first_by_its_name_of_a_model(fallback: list[str]) -> None:
    """An Ollama lists llama3.2:latest, and clients say llama3.2, as the settings of the fallback do."""
    async with FakeUpstream(models=["llama3.2:latest"]) as own, FakeUpstream() as cloud:
        upstreams = [
            {"name": "own", "replicas": [own.url], "fallback": fallback},
            {"name": "cloud", "replicas": [cloud.url], "models": {"llama3.2": "theirs"}},
        ]
        async with gateway_for({"upstreams": upstreams}) as gateway:
            answer = await gateway.ask(model="llama3.2", n=2)
            assert answer.headers["x-nproxy-upstream"] == ("own" if fallback else "cloud")
            if fallback:
                own.behaviour = Behaviour(status=503)
                answer = await gateway.ask(model="llama3.2", n=2)
                assert answer.headers["x-nproxy-upstream"] == "cloud" and answer.json()["model"] == "llama3.2"
                assert cloud.calls[-1].body["model"] == "theirs"


@everywhere
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_Q1_Q19_the_only_upstream_is_asked_for_names_that_it_does_not_list(scene: Scene, path: str) -> None:
    """Some servers list other names than they accept, or accept any."""
    for _ in range(2):
        assert (await scene.whole(path, model="client-sent-name")).texts == scene.said
    assert {call.body["model"] for call in scene.calls} == {"client-sent-name"}
    metrics = (await (await scene.gateway()).client.get("/metrics")).text
    assert "client-sent" not in metrics and 'model="other"' in metrics
    scene.does(status=404, body=b'{"error": {"message": "model not found, try pulling it first"}}')
    assert (await scene.refused(404, path, model="nobody"))["message"] == "model not found, try pulling it first"


@everywhere
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_Q1_without_a_name_the_only_model_of_the_only_upstream_is_meant(scene: Scene, path: str) -> None:
    for sent in ({"model": None}, {}):
        asked = {name: value for name, value in scene.fields(path).items() if name != "model"} | sent
        answer = await (await scene.gateway()).post(asked, path)
        assert answer.status_code == 200
        assert scene.n == 1 or answer.json()["model"] == MODEL, "one choice comes as the server says it"
    assert all(call.body.get("model") is None for call in scene.calls), "it is sent as it came"


@everywhere
async def test_Q1_without_a_name_one_of_several_models_is_not_guessed(scene: Scene) -> None:
    scene.upstream.models = ["a", "b"]
    answer = await (await scene.gateway()).post({"messages": [{"role": "user", "content": "hi"}]})
    assert answer.status_code == 400 and envelope(answer)["param"] == "model"
    assert scene.calls == []


@everywhere
async def test_Q1_a_list_that_cannot_be_read_takes_any_model(scene: Scene) -> None:
    scene.upstream.list_fails = True
    assert (await scene.whole(model="anything")).texts == scene.said
    assert (await (await scene.gateway()).client.get("/ready")).status_code == 200, "it does answer"


@everywhere
async def test_Q2_an_alias_is_shown_as_the_client_asked(scene: Scene) -> None:
    await scene.start(models={"mine": "theirs"})
    assert (await scene.whole(model="mine")).answer["model"] == "mine"
    assert {chunk["model"] for chunk in (await scene.stream(model="mine")).chunks} == {"mine"}
    assert {call.body["model"] for call in scene.calls} == {"theirs"}
    await scene.refused(404, model="theirs")


@of_http
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


@everywhere
async def test_Q19_labels_come_from_the_configuration_only(scene: Scene) -> None:
    scene.upstream.list_fails = True
    scene.does(finish="invented_reason")
    gateway = await scene.gateway()
    await scene.send(model="client-sent-name")
    await gateway.client.get("/client-sent-path")
    text = (await gateway.client.get("/metrics")).text
    assert "client-sent" not in text
    assert "invented_reason" not in text
    assert 'model="other"' in text


@everywhere
async def test_Q19_configured_models_have_their_names(scene: Scene) -> None:
    gateway = await scene.start(models=[MODEL])
    await scene.send()
    mode = {"one": "relay"}.get(scene.setting.name, scene.setting.name)
    ok = f'endpoint="chat/completions",mode="{mode}",model="{MODEL}",upstream="fake"'
    assert await gateway.metric(f'nproxy_requests_total{{code="200",{ok}}}') == 1
    counted = f'nproxy_choices_total{{finish_reason="stop",model="{MODEL}",upstream="fake"}}'
    assert await gateway.metric(counted) == scene.n
    assert await gateway.metric('nproxy_legs_total{outcome="ok",upstream="fake"}') == scene.legs
    tokens = f'nproxy_tokens_total{{model="{MODEL}",side="%s",type="%s",upstream="fake"}}'
    assert await gateway.metric(tokens % ("client", "prompt")) == 5
    assert await gateway.metric(tokens % ("upstream", "prompt")) == 5 * scene.legs
    assert await gateway.metric(tokens % ("client", "completion")) == 4 * scene.n

"""Pages: shown without a key, as a browser takes them, where they are switched on and nowhere else."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from nproxy.gateway.pages.site import FOLDER
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import Gateway, Start, envelope

PLAYGROUND = FOLDER / "playground"
FILES = {"/": "text/html", "/playground/style.css": "text/css", "/playground/main.js": "text/javascript"}


@pytest.mark.parametrize(("path", "kind"), FILES.items())
async def test_a_page_and_its_files_are_served(gateway: Gateway, path: str, kind: str) -> None:
    got, head = await gateway.client.get(path), await gateway.client.head(path)
    assert got.status_code == head.status_code == 200
    assert got.headers["content-type"] == f"{kind}; charset=utf-8"
    assert got.content == (PLAYGROUND / (path.rpartition("/")[2] or "index.html")).read_bytes()
    assert head.content == b""
    assert {**head.headers, "x-request-id": "", "date": ""} == {**got.headers, "x-request-id": "", "date": ""}


@pytest.mark.parametrize("page", ["/", "/docs"])
async def test_a_browser_is_told_what_a_page_may_do(gateway: Gateway, page: str) -> None:
    told = (await gateway.client.get(page)).headers
    policy = dict(rule.strip().split(" ", 1) for rule in told["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data:"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert told["x-content-type-options"] == "nosniff"
    assert told["cache-control"] == "no-cache"
    assert told["referrer-policy"] == "no-referrer"
    sinks = (policy.get("require-trusted-types-for"), policy.get("trusted-types"))
    assert sinks == (("'script'", "'none'") if page == "/" else (None, None)), "Swagger UI makes markup"


KEYED: dict[str, Any] = {"auth": {"api_key": "canary-key"}}


async def test_pages_need_no_key_and_what_they_ask_does(start: Start) -> None:
    gateway = await start(config=KEYED)
    assert (await gateway.client.get("/")).status_code == 200
    assert (await gateway.client.get("/playground/main.js")).status_code == 200
    assert (await gateway.client.get("/v1/models")).status_code == 401
    assert (await gateway.client.get("/playground/nothing.js")).status_code == 401, "no page, so a key is asked for"


async def test_a_page_that_is_switched_off_is_not_there(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"pages": {"playground": False}})
    for path in FILES:
        for answer in (await gateway.client.get(path), await gateway.client.post(path)):
            assert answer.status_code == 404
            assert envelope(answer)["code"] == "unknown_url"
    assert upstream.requests == []


PATHS = (
    "/playground",
    "/playground/",
    "/playground/../site.py",
    "/playground/%2e%2e/site.py",
    "/site.py",
    "/%2f",
)


@pytest.mark.parametrize("path", PATHS)
async def test_there_are_no_other_files(gateway: Gateway, path: str) -> None:
    assert (await gateway.client.get(path)).status_code == 404


async def test_with_everything_passing_through_the_pages_are_the_gateways_own(
    start: Start, upstream: FakeUpstream
) -> None:
    gateway = await start(config={"passthrough": {"paths": "all"}})
    assert (await gateway.client.get("/")).headers["content-type"].startswith("text/html")
    assert upstream.requests == []
    await gateway.client.post("/", content=b"x")
    assert [seen.target for seen in upstream.requests] == ["/"]


async def test_loading_a_page_is_no_line_in_the_log(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "nproxy.access"):
        await gateway.client.get("/")
        await gateway.client.get("/nothing")
    assert [(line.message, line.levelname) for line in caplog.records] == [("playground", "DEBUG"), ("other", "INFO")]
    assert await gateway.metric("nproxy_inflight_requests") == 0


async def test_a_page_may_be_switched_off_while_it_is_served(gateway: Gateway) -> None:
    assert (await gateway.client.get("/")).status_code == 200
    config = gateway.app.config
    off = config.pages.model_copy(update={"playground": False})
    gateway.app.reconfigure(config.model_copy(update={"pages": off}))
    assert (await gateway.client.get("/")).status_code == 404


SOURCES = sorted(PLAYGROUND.iterdir())


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_the_playground_is_of_files_alone(file: Path) -> None:
    """Nothing is fetched from elsewhere, nothing stands inline, and no text becomes markup."""
    text = file.read_text()
    outside = [url for url in re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text) if "www.w3.org" not in url]
    assert outside == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text) == []
    if file.suffix == ".html":
        assert re.findall(r"\son\w+=|\sstyle=|<style|<script(?![^>]*\ssrc=)", text) == []


def test_every_file_that_the_playground_names_is_there() -> None:
    named = set(re.findall(r'(?:src|href)="playground/([\w.-]+)"', (PLAYGROUND / "index.html").read_text()))
    for source in SOURCES:
        named |= set(re.findall(r'from "\./([\w.-]+)"', source.read_text()))
    assert named | {"index.html"} == {source.name for source in SOURCES}

"""/docs: files of the package, as they were published, and nobody else's host."""

from __future__ import annotations

import json
import re

from nproxy.gateway.pages.policy import CONTENT
from tests.gateway.conftest import Gateway, Start
from tools.swagger_ui import KEPT, digests


def test_what_is_vendored_is_what_was_published() -> None:
    kept = json.loads(KEPT.read_text())
    assert kept["files"] == digests()
    assert kept["license"] == "Apache-2.0"
    assert "Apache License" in (KEPT.parent / "LICENSE").read_text()


async def test_the_page_and_all_that_it_needs_is_served_under_the_policy(gateway: Gateway) -> None:
    page = await gateway.client.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-security-policy"] == CONTENT["docs"]
    needed = [name for name in re.findall(r'(?:src|href)="([^"]+)"', page.text) if not name.startswith("data:")]
    assert "docs/swagger-ui/swagger-ui-bundle.js" in needed
    assert not any("//" in name for name in needed)
    for name in needed:
        assert (await gateway.client.get(f"/{name}")).status_code == 200, name
    assert "<script>" not in page.text
    assert "style=" not in page.text


async def test_it_can_be_switched_off(start: Start) -> None:
    gateway = await start(config={"pages": {"docs": False}})
    assert (await gateway.client.get("/docs")).status_code == 404
    assert (await gateway.client.get("/openapi.json")).status_code == 200, "for programs"

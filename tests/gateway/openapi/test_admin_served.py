"""The admin port's document: open, complete, and true of what the port answers."""

from __future__ import annotations

from urllib.parse import quote

import httpx

from nproxy.gateway.admin import port
from nproxy.gateway.admin.document import admin_document
from tests.fakes.upstream import FakeUpstream
from tests.gateway.openapi.described import answer_problems, operations
from tests.gateway.test_admin import TOKEN, Fleet, fleet_for

REPLICAS = "/admin/upstreams/{upstream}/replicas"


async def test_it_is_shown_without_the_token() -> None:
    async with fleet_for("http://127.0.0.1:9/v1") as fleet:
        answer = await fleet.admin.get("/openapi.json", headers={"authorization": ""})
        assert answer.status_code == 200
        assert TOKEN not in answer.text
        assert answer.json() == admin_document(fleet.gateway.app.config)


async def test_every_route_is_in_it() -> None:
    async with fleet_for("http://127.0.0.1:9/v1") as fleet:
        there = {(path, method.upper()) for path, method, _ in operations(admin_document(fleet.gateway.app.config))}
    served = {(path, method) for path, methods in port._SERVED.items() for method in methods}
    served |= {(REPLICAS + (act or ""), method) for act, methods in port._OF_REPLICAS.items() for method in methods}
    assert there == served


async def test_what_the_port_answers_is_as_described(upstream: FakeUpstream) -> None:
    async with fleet_for() as fleet:
        told = upstream.url
        answers = [
            (201, await _asked(fleet, "POST", REPLICAS, {"url": told, "lease_seconds": 30})),
            (200, await _asked(fleet, "POST", REPLICAS, {"url": told})),
            (400, await _asked(fleet, "POST", REPLICAS, {"url": told, "weight": -1})),
            (200, await _asked(fleet, "GET", REPLICAS)),
            (200, await _asked(fleet, "POST", f"{REPLICAS}/drain", {"url": told})),
            (200, await _asked(fleet, "POST", f"{REPLICAS}/undrain", {"url": told})),
            (404, await _asked(fleet, "POST", f"{REPLICAS}/undrain", {"url": told})),
            (204, await _asked(fleet, "DELETE", f"{REPLICAS}?url={quote(told, safe='')}")),
            (409, await _asked(fleet, "POST", "/admin/restart")),
            *[(200, await _asked(fleet, "GET", path)) for path in ("/health", "/status", "/metrics")],
        ]
        document = admin_document(fleet.gateway.app.config)
        for status, (method, path, answer) in answers:
            assert answer.status_code == status, answer.text
            assert answer_problems(document, method, path, answer) == []


async def test_what_the_port_refuses_is_as_described() -> None:
    """Whoever has no token, every page in a browser, and bodies that cannot be read."""
    async with fleet_for("http://127.0.0.1:9/v1") as fleet:
        document = admin_document(fleet.gateway.app.config)
        for path, method, operation in operations(document):
            target = path.replace("{upstream}", "fake")
            unknown = await fleet.admin.request(method, target, headers={"authorization": ""})
            page = await fleet.admin.request(method, target, headers={"origin": "http://page.example"})
            assert page.status_code == 403
            assert unknown.status_code == 401 or path in port._OPEN
            for answer in (unknown, page):
                assert answer_problems(document, method, path, answer) == []
            if "requestBody" in operation:
                large = await fleet.admin.request(method, target, content=b" " * 100_000)
                packed = await fleet.admin.request(method, target, content=b"x", headers={"content-encoding": "br"})
                assert (large.status_code, packed.status_code) == (413, 415)
                for answer in (large, packed):
                    assert answer_problems(document, method, path, answer) == []


async def _asked(
    fleet: Fleet, method: str, target: str, body: dict[str, object] | None = None
) -> tuple[str, str, httpx.Response]:
    """The answer, and under which operation it is described."""
    answer = await fleet.admin.request(method, target.replace("{upstream}", "fake"), json=body)
    return method.lower(), target.partition("?")[0], answer

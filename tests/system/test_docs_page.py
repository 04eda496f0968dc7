"""/docs in Debian's Chromium: it loads under its content policy, and operations can be tried with the keyboard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.fixtures import MODEL
from tests.real.processes import Server, nproxy
from tests.system.axe import found
from tests.system.browser import CONTRAST, picture

pytestmark = [pytest.mark.model, pytest.mark.timeout(330)]

WAIT = 120_000
"""Milliseconds to wait for anything."""

CHAT = "#operations-Generate-createChatCompletion"
KEY = "a-key-of-the-test-0123456789"


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A window; a console message other than one about an answer's status fails the test."""
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 1000}, color_scheme="dark")
    context.set_default_timeout(WAIT)
    window = context.new_page()
    window.on("pageerror", lambda error: wrong.append(str(error)))
    window.on(
        "console",
        lambda said: (
            wrong.append(said.text)
            if said.type in ("error", "warning") and "Failed to load resource" not in said.text
            else None
        ),
    )
    yield window
    context.close()
    assert wrong == []


def tried(page: Any, operation: str) -> tuple[int, Any]:
    """Try an operation that is open; return status and body of the answer as the page shows them."""
    page.wait_for_selector(f"{operation} button.execute:enabled")
    page.focus(f"{operation} button.execute")
    page.keyboard.press("Enter")
    live = f"{operation} .live-responses-table"
    status = page.text_content(f"{live} tbody .response-col_status")
    return int(status.split()[0]), json.loads(page.text_content(f"{live} .response-col_description pre"))


def test_a_chat_can_be_tried(page: Any, engine_road: Server) -> None:
    page.goto(f"{engine_road.url}/docs")
    page.focus(f"{CHAT} .opblock-summary-control")
    page.keyboard.press("Enter")
    status, answer = tried(page, CHAT)
    picture(page, "docs")
    assert status == 200
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_on_a_phone(page: Any, engine_road: Server, scheme: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{engine_road.url}/docs")
    page.click(f"{CHAT} .opblock-summary-control")
    page.wait_for_selector(f"{CHAT} button.execute:enabled")
    page.locator(f"{CHAT} tr.response[data-code='200'] .microlight").wait_for()
    picture(page, f"docs-phone-{scheme}", full_page=True)
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    heading = page.locator("#operations-tag-Passed_through small").bounding_box()
    assert heading["width"] > 200, "words are whole"


HEIGHT = 4000
"""The most pixels that an open operation may take; it took more than 10,000 when each error showed everything."""


def test_what_all_have_alike_is_folded(page: Any, engine_road: Server) -> None:
    page.goto(f"{engine_road.url}/docs")
    page.wait_for_selector("#operations-tag-Passed_through[data-is-open=false]")
    page.wait_for_selector("#operations-tag-Generate[data-is-open=true]")
    page.click(f"{CHAT} .opblock-summary-control")
    errors = page.locator(f"{CHAT} .responses-table tr.response[data-code^='4']")
    errors.first.wait_for()
    assert errors.locator("table.headers").count() == 0
    assert page.locator(CHAT).bounding_box()["height"] < HEIGHT
    picture(page, "docs-folded", full_page=True)
    page.get_by_role("button", name="Body and headers of 429").click()
    unfolded = page.locator(f"{CHAT} tr.response[data-code='429']")
    unfolded.locator("table.headers").wait_for()
    assert "overloaded" in unfolded.text_content()
    assert "chatcmpl-" in page.locator(f"{CHAT} tr.response[data-code='200']").text_content()


def test_a_link_to_what_is_folded_opens_it(page: Any, engine_road: Server) -> None:
    page.goto(f"{engine_road.url}/docs#/Passed%20through/createEmbedding")
    page.wait_for_selector("#operations-tag-Passed_through[data-is-open=true]")
    page.wait_for_selector("[id='operations-Passed through-createEmbedding'].is-open, .opblock.is-open")


def test_back_leads_to_the_page_before(page: Any, engine_road: Server) -> None:
    page.goto(engine_road.url)
    page.goto(f"{engine_road.url}/docs")
    page.wait_for_selector("#operations-tag-Passed_through[data-is-open=false]")
    page.go_back()
    page.wait_for_selector("#form")


def test_a_link_to_an_operation_stays_in_the_address(page: Any, engine_road: Server) -> None:
    link = f"{engine_road.url}/docs#/Generate/createChatCompletion"
    page.goto(link)
    page.wait_for_selector(f"{CHAT}.is-open")
    page.wait_for_selector("#operations-tag-Passed_through[data-is-open=false]")
    assert page.url == link


PRESS_AS_SHOWN = """operation => new Promise(done => {
  const look = () => {
    const execute = document.querySelector(`${operation} button.execute`);
    if (!execute) return;
    watched.disconnect();
    execute.click();
    done(`shown and ${execute.disabled ? "not to be" : "to be"} pressed`);
  };
  const watched = new MutationObserver(look);
  watched.observe(document.body, { subtree: true, childList: true });
  document.querySelector(`${operation} .opblock-summary-control`).click();
})"""


def test_an_operation_is_asked_once_it_is_read(page: Any, engine_road: Server) -> None:
    """Pressed as soon as it is shown, "Execute" does nothing; it used to start a request that never ended."""
    page.goto(f"{engine_road.url}/docs")
    operation = "#operations-Models-listModels"
    page.wait_for_selector(f"{operation} .opblock-summary-control")
    pressed = page.evaluate(PRESS_AS_SHOWN, operation)
    assert pressed == "shown and not to be pressed"
    status, models = tried(page, operation)
    assert (status, models["object"]) == (200, "list")


def test_an_example_can_be_executed_though_no_setting_names_a_model(page: Any, engine_road: Server, logs: Path) -> None:
    with nproxy("--upstream", engine_road.v1, log=logs / "docs-auto.log") as gateway:
        page.goto(f"{gateway.url}/docs")
        page.click(f"{CHAT} .opblock-summary-control")
        status, answer = tried(page, CHAT)
        assert (status, answer["model"]) == (200, MODEL)


def test_operations_are_below_the_path_of_the_page(page: Any, engine_road: Server) -> None:
    """A reverse proxy may give the gateway a path, which it takes off; here the browser does it."""
    below = f"{engine_road.url}/llm"
    page.route(
        f"{below}/**", lambda route: route.fulfill(response=route.fetch(url=route.request.url.replace("/llm", "")))
    )
    page.goto(f"{below}/docs")
    operation = "#operations-Models-listModels"
    page.click(f"{operation} .opblock-summary-control")
    status, models = tried(page, operation)
    assert (status, models["object"]) == (200, "list")
    assert page.text_content(f"{operation} .request-url pre").strip() == f"{below}/v1/models"


@pytest.mark.parametrize("chosen", ["light", "dark"])
def test_the_theme_of_the_playground_is_the_pages(page: Any, engine_road: Server, chosen: str) -> None:
    page.emulate_media(color_scheme="dark" if chosen == "light" else "light")
    page.goto(engine_road.url)
    page.evaluate(f"localStorage.setItem('nproxy.theme', '{chosen}')")
    page.goto(f"{engine_road.url}/docs")
    page.wait_for_selector("#operations-Models-listModels")
    assert page.evaluate("document.documentElement.classList.contains('dark-mode')") == (chosen == "dark")


SWAGGERS = {
    "nested-interactive",  # a summary that is a button around links
    "heading-order",  # h3 after h1
    "region",  # its title, servers and keys stand beside its <main>
}
"""What Swagger UI does by itself, and axe-core finds."""


def test_it_can_be_used_without_eyes_or_a_mouse(page: Any, engine_road: Server, logs: Path) -> None:
    with nproxy("--upstream", engine_road.v1, "--api-key", KEY, log=logs / "docs-axe.log") as gateway:
        page.goto(f"{gateway.url}/docs")
        page.wait_for_selector("#operations-tag-Passed_through[data-is-open=false]")
        assert found(page, but=SWAGGERS) == []
        page.click(f"{CHAT} .opblock-summary-control")
        status, _ = tried(page, CHAT)
        assert status == 401
        assert found(page, but=SWAGGERS) == []
        page.click(".scheme-container .authorize")
        page.wait_for_selector("#auth-bearer-value:focus")
        assert page.locator(".modal-ux-content").evaluate("(content) => content.scrollTop") == 0
        assert page.get_attribute("#auth-bearer-value", "type") == "password"
        assert found(page, but=SWAGGERS) == []


def test_a_key_can_be_shown(page: Any, engine_road: Server, logs: Path) -> None:
    with nproxy("--upstream", engine_road.v1, "--api-key", KEY, log=logs / "docs-key.log") as gateway:
        page.goto(f"{gateway.url}/docs")
        operation = "#operations-Models-listModels"
        page.click(f"{operation} .opblock-summary-control")
        status, refused = tried(page, operation)
        assert (status, refused["error"]["code"]) == (401, "invalid_api_key")
        page.emulate_media(color_scheme="light")
        page.click(".scheme-container .authorize")
        page.wait_for_selector("#auth-bearer-value")
        assert page.evaluate(CONTRAST) == []
        page.fill("#auth-bearer-value", KEY)
        page.keyboard.press("Enter")
        page.click(".modal-ux .btn-done")
        page.click(f"{operation} .btn-clear")
        page.wait_for_selector(f"{operation} .live-responses-table", state="detached")
        status, models = tried(page, operation)
        assert (status, models["object"]) == (200, "list")

"""The page used with the keyboard."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.upstream import Behaviour
from tests.ports import free_port
from tests.real.processes import Server
from tests.system.browser import picture
from tests.system.playground.servers import gateway, scripted
from tests.system.playground.window import Pages, begun, ended, finishes, send


@pytest.mark.model
def test_keys(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road)
    page.focus("#open-keys")
    page.keyboard.press("Enter")
    assert page.is_visible("#keys")
    picture(page, "keys")
    page.click("#keys button")
    assert not page.is_visible("#keys")
    page.focus("#send")
    page.keyboard.press("Enter")
    page.wait_for_selector("#stop:focus")
    assert page.text_content("#shortcut") == "Esc"
    page.keyboard.press("Enter")
    page.wait_for_selector("#send:focus")
    assert page.text_content("#shortcut") == "Ctrl+Enter"
    assert set(finishes(page)) <= {"stopped", "stop", "length"}


def test_esc_ends_a_composition_and_not_the_stream(pages: Pages, logs: Path) -> None:
    """The first Esc cancels an input method's composition; the next one is for the page."""
    with scripted(Behaviour(hold_after=2)) as upstream, gateway(upstream.url, log=logs / "composed.log") as server:
        page = pages.open(server)
        send(page, n="2")
        begun(page, 2)
        page.locator("[name=prompt]").evaluate(
            """(field) => field.dispatchEvent(
              new KeyboardEvent("keydown", { key: "Escape", bubbles: true, cancelable: true, isComposing: true }))"""
        )
        page.wait_for_timeout(300)
        assert page.is_visible("#stop"), "it goes on"
        page.keyboard.press("Escape")
        ended(page)
        assert finishes(page) == ["stopped", "stopped"]


def test_a_model_that_is_typed_has_a_field_with_a_name(pages: Pages, logs: Path) -> None:
    with gateway(f"http://127.0.0.1:{free_port()}/v1", log=logs / "nameless.log") as server:
        page = pages.open(server)
        page.fill("[name=prompt]", "Hello")
        page.click("#send")
        assert page.locator("[name=typed-model]:focus:invalid").is_visible(), "the browser asks for a model"
        page.get_by_role("textbox", name="Model", exact=True).fill("typed")
        assert page.input_value("[name=typed-model]") == "typed"

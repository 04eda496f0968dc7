"""The page by the keyboard."""

from __future__ import annotations

import pytest

from tests.real.processes import Server
from tests.system.browser import picture
from tests.system.playground.window import Pages, finishes


@pytest.mark.model
def test_keys(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road)
    page.focus("[name=prompt]")
    page.keyboard.type("?")
    assert not page.is_visible("#keys"), "it is typed"
    page.focus("#open-history")
    page.keyboard.type("?")
    assert page.is_visible("#keys")
    picture(page, "keys")
    page.click("#keys button")
    assert not page.is_visible("#keys")
    page.focus("#send")
    page.keyboard.press("Enter")
    page.wait_for_selector("#stop:focus")
    page.keyboard.press("Enter")
    page.wait_for_selector("#send:focus")
    assert set(finishes(page)) <= {"stopped", "stop", "length"}

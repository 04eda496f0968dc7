"""What the page keeps, in this browser and no longer than wanted."""

from __future__ import annotations

import pytest

from tests.real.processes import Server
from tests.system.browser import picture
from tests.system.playground.window import LINE, Pages, ended, send, texts


@pytest.mark.model
def test_history_is_there_after_a_reload(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road)
    send(page, prompt=LINE, n="2", max_tokens="12")
    ended(page)
    said = texts(page)
    page.reload()
    assert page.input_value("[name=n]") == "2", "the form is as it was last"
    assert page.locator(".choice").count() == 0
    page.click("#open-history")
    picture(page, "history")
    page.click("#history-list button")
    assert texts(page) == said
    page.click("#open-history")
    page.uncheck("#history-wanted")
    page.keyboard.press("Escape")
    send(page, n="1")
    ended(page)
    page.click("#open-history")
    assert page.locator("#history-list").text_content() == "Nothing is kept."
    assert page.evaluate("Object.keys(localStorage).filter((name) => localStorage[name].includes('color'))") == []

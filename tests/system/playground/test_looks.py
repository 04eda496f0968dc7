"""How the page looks: light and dark, on a phone."""

from __future__ import annotations

import pytest

from tests.real.processes import Server
from tests.system.browser import picture
from tests.system.playground.window import CONTRAST, LINE, PHONE, Pages, ended, send, view


@pytest.mark.model
def test_themes(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road, color_scheme="light")
    seen = {}
    for theme in ("system", "light", "dark"):
        assert page.locator("#theme").text_content() == f"Theme: {theme}"
        seen[theme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        low = page.evaluate(CONTRAST)
        assert low == [], f"WCAG AA in {theme}"
        if theme == "dark":
            send(page, prompt=LINE, n="3", max_tokens="40")
            ended(page)
            view(page, "Probabilities")
            assert page.evaluate(CONTRAST) == []
            picture(page, "dark")
            page.reload()
            assert page.evaluate("document.documentElement.dataset.theme") == "dark", "it is kept"
        page.click("#theme")
    assert seen["system"] == seen["light"] != seen["dark"]


@pytest.mark.model
def test_on_a_phone(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road, viewport=PHONE, device_scale_factor=2, has_touch=True, is_mobile=True)
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(fits)
    assert not page.is_visible("[name=temperature]"), "settings are folded"
    picture(page, "phone")
    page.locator("#controls > summary").tap()
    page.fill("[name=n]", "4")
    page.fill("[name=max_tokens]", "40")
    page.locator("#each > summary").tap()
    assert page.evaluate(fits)
    picture(page, "phone-settings", full_page=True)
    page.fill("[name=prompt]", f"{LINE} {'w' * 300}")
    page.locator("#send").tap()
    ended(page)
    assert page.evaluate(fits)
    boxes = [page.locator(".choice").nth(index).bounding_box() for index in range(4)]
    assert all(0.7 * PHONE["width"] < box["width"] < PHONE["width"] for box in boxes)
    assert boxes[0]["x"] < boxes[1]["x"] < boxes[2]["x"], "swiped through"
    page.evaluate("document.querySelector('#columns').scrollBy(300, 0)")
    view(page, "Probabilities")
    page.locator(".choice").nth(1).locator(".token").nth(2).tap()
    assert page.is_visible("#tip"), "a finger has no hover"
    box = page.locator("#tip").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]
    picture(page, "phone-answers")

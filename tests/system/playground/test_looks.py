"""How the page looks: light and dark, on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.upstream import Behaviour
from tests.real.processes import Server
from tests.system.browser import CONTRAST, picture
from tests.system.playground.servers import gateway, scripted
from tests.system.playground.window import LINE, PHONE, WIDE, Pages, begun, ended, send, view


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


def test_every_shade_can_be_read(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "shades.log") as server:
        page = pages.open(server, color_scheme="light")
        send(page, n="2")
        ended(page)
        view(page, "Probabilities")
        for theme in ("light", "dark"):
            page.click("#theme")
            assert page.get_attribute("html", "data-theme") == theme
            shades = page.locator("#legend .token")
            grounds = shades.evaluate_all("(all) => all.map((one) => getComputedStyle(one).backgroundColor)")
            assert len(set(grounds)) == 5
            assert page.evaluate(CONTRAST) == [], f"WCAG AA in {theme}"


def test_a_finish_reason_looks_like_no_button(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "finish.log") as server:
        page = pages.open(server)
        send(page, n="1")
        ended(page)
        look = "(element) => [getComputedStyle(element).borderStyle, getComputedStyle(element, '::before').content]"
        assert page.locator(".choice .finish").evaluate(look) == ["none", '"finish: "']


def test_answers_come_to_the_top_of_a_phone(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour(hold_after=2)) as upstream, gateway(upstream.url, log=logs / "phone-top.log") as server:
        page = pages.open(server, viewport=PHONE, device_scale_factor=2, has_touch=True, is_mobile=True)
        page.locator("#send").tap()
        begun(page, 4)
        page.wait_for_timeout(300)  # let a scroll finish
        assert abs(page.locator("#answers").bounding_box()["y"]) < 2
        assert page.locator("#stop").bounding_box()["y"] < PHONE["height"]
        picture(page, "phone-streaming")
        upstream.go_on()
        ended(page)


@pytest.mark.parametrize("viewport", [WIDE, PHONE, {"width": 600, "height": 740}])
def test_the_chosen_view_fills_its_tab(pages: Pages, logs: Path, viewport: dict[str, int]) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "tab.log") as server:
        page = pages.open(server, viewport=viewport, device_scale_factor=2)
        frame, tab = (page.locator(at).bounding_box() for at in ("#views", "#views :checked + span"))
        assert tab["height"] == frame["height"] - 2, "all but its border"


def test_a_checkbox_stands_below_the_fields(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "edge.log") as server:
        page = pages.open(server)
        field, box = (page.locator(f"[name={name}]").bounding_box() for name in ("seed", "logprobs"))
        assert box["x"] == field["x"]


def test_a_message_without_spaces_stays_within_a_phone(pages: Pages, logs: Path) -> None:
    says = f'{{"error": {{"message": "See https://example.org/{"a" * 200}", "param": "n"}}}}'
    with (
        scripted(Behaviour(status=400, body=says.encode())) as upstream,
        gateway(upstream.url, log=logs / "long-word.log") as server,
    ):
        page = pages.open(server, viewport=PHONE)
        page.locator("#send").click()
        page.wait_for_selector(".problem:has-text('example.org')")
        assert page.locator("#form").evaluate("(form) => form.scrollWidth <= form.clientWidth")


def test_a_field_that_is_wrong_shows_that_it_has_the_focus(pages: Pages, logs: Path) -> None:
    says = b'{"error": {"message": "no", "param": "n"}}'
    with (
        scripted(Behaviour(status=400, body=says)) as upstream,
        gateway(upstream.url, log=logs / "wrong-field.log") as server,
    ):
        page = pages.open(server)
        page.locator("#send").click()
        field = page.locator("[name=n][aria-invalid=true]")
        width = "(field) => getComputedStyle(field).outlineWidth"
        field.wait_for()
        ended(page)  # while the answer is awaited, there is Stop instead of Send
        page.locator("#send").focus()
        assert field.evaluate(width) == "1px"
        field.focus()
        assert field.evaluate(width) == "2px"


def test_nothing_is_cut_off_at_four_times_the_size(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "reflow.log") as server:
        page = pages.open(server, viewport={"width": 320, "height": 256})  # 1280 by 1024 at 400 % (WCAG 2.2, 1.4.10)
        page.wait_for_selector("#docs:visible")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_text_is_as_large_as_the_browsers_default_asks_for(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "large.log") as server:
        page = pages.open(server)
        sizes = "[...document.querySelectorAll('body *')].map((one) => parseFloat(getComputedStyle(one).fontSize))"
        before = page.evaluate(sizes)
        page.evaluate("document.documentElement.style.fontSize = '32px'")
        assert page.evaluate(sizes) == [2 * size for size in before]
        for place in ("html", "#form"):
            assert page.locator(place).evaluate("(one) => one.scrollWidth <= one.clientWidth"), place
        picture(page, "large")


def test_forced_colors_show_what_is_chosen_and_how_likely(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "forced.log") as server:
        page = pages.open(server, forced_colors="active")
        send(page, n="2")
        ended(page)
        view(page, "Probabilities")
        ground = "(all) => all.map((one) => getComputedStyle(one).backgroundColor)"
        text, chosen, _ = page.locator("#views span").evaluate_all(ground)
        assert text != chosen
        lines = "(all) => all.map((one) => getComputedStyle(one).textDecoration)"
        assert len(set(page.locator("#legend .token").evaluate_all(lines))) == 5
        picture(page, "forced-colors")


def test_an_entry_of_the_history_shows_that_it_has_the_focus(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "ring.log") as server:
        page = pages.open(server)
        send(page, n="1")
        ended(page)
        page.click("#open-history")
        page.keyboard.press("Shift+Tab")  # from Close to Clear
        page.keyboard.press("Shift+Tab")
        entry = page.locator("#history-list button:focus-visible")
        ring = (
            "(one) => parseFloat(getComputedStyle(one).outlineWidth) + parseFloat(getComputedStyle(one).outlineOffset)"
        )
        assert entry.evaluate(ring) <= 0, "the list cuts off what is outside"
        picture(page, "history-focus")


def test_a_long_token_leaves_room_for_its_probability(pages: Pages, logs: Path) -> None:
    says = Behaviour(pieces=lambda seed: ["-" * 80, " b"])
    with scripted(says) as upstream, gateway(upstream.url, log=logs / "long-token.log") as server:
        page = pages.open(server, viewport={"width": 320, "height": 400})
        page.locator("#send").click()
        ended(page)
        view(page, "Probabilities")
        page.locator(".choice .token").first.focus()
        tip, share = (page.locator(at).first.bounding_box() for at in ("#tip", "#tip td:last-child"))
        assert share["x"] + share["width"] <= tip["x"] + tip["width"]
        picture(page, "long-token")


def test_the_line_beside_the_form_is_as_long_as_the_form(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "line.log") as server:
        page = pages.open(server, viewport={"width": 1440, "height": 450})
        page.click("#each > summary")
        form, answers = (page.locator(at).bounding_box() for at in ("#form", "#answers"))
        assert answers["height"] >= form["height"]


@pytest.mark.model
def test_the_scene_of_the_readme(pages: Pages, engine_road: Server) -> None:
    """This test makes docs/images/playground.png."""
    page = pages.open(
        engine_road, viewport={"width": 1440, "height": 690}, device_scale_factor=1.25, color_scheme="light"
    )
    send(page, prompt=LINE, n="4", seed="11", max_tokens="120", top_logprobs="5")
    ended(page)
    view(page, "Probabilities")
    page.locator(".choice").nth(1).locator(".token.shade-3, .token.shade-4").nth(1).hover()
    assert page.is_visible("#tip")
    picture(page, "playground")

"""The page used with the keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.upstream import Behaviour
from tests.ports import free_port
from tests.real.processes import Server
from tests.system.browser import picture
from tests.system.playground.servers import gateway, scripted
from tests.system.playground.window import Pages, begun, ended, finishes, send, view


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
        page.wait_for_selector("[name=typed-model]:focus:invalid")  # the browser asks for a model
        page.get_by_role("textbox", name="Model", exact=True).fill("typed")
        assert page.input_value("[name=typed-model]") == "typed"


@pytest.mark.parametrize("place", [".choice .token", "[name=system]"])
def test_the_focus_goes_to_stop_when_its_element_goes_away(pages: Pages, logs: Path, place: str) -> None:
    """A new request removes the tokens of the last one, and folds the settings at 400 %."""
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "gone.log") as server:
        page = pages.open(server, viewport={"width": 320, "height": 256})
        page.click("#controls > summary")
        send(page, n="2")
        ended(page)
        view(page, "Probabilities")
        page.locator("#controls").evaluate("(details) => { details.open = true }")
        upstream.behaviour = Behaviour(hold_after=2)
        page.focus(place)
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#stop:focus")
        upstream.go_on()
        page.wait_for_selector("#send:focus")


def test_the_end_of_an_answer_does_not_scroll_away_from_it(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour(hold_after=2)) as upstream, gateway(upstream.url, log=logs / "stays.log") as server:
        page = pages.open(server, viewport={"width": 320, "height": 256})
        page.focus("#send")
        page.keyboard.press("Enter")
        begun(page, 4)
        page.wait_for_timeout(300)  # let a scroll finish
        before = page.evaluate("scrollY")
        assert before > 0
        upstream.go_on()
        page.wait_for_selector("#send:focus", state="attached")
        page.wait_for_timeout(300)
        assert page.evaluate("scrollY") >= before


def test_clearing_the_history_keeps_the_focus_in_it(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "cleared.log") as server:
        page = pages.open(server)
        send(page, n="1")
        ended(page)
        page.focus("#open-history")
        page.keyboard.press("Enter")
        page.focus("#history-clear")
        page.keyboard.press("Enter")
        page.wait_for_selector("#history-clear:disabled")
        page.wait_for_timeout(300)  # a disabled button loses the focus with the next frame
        assert page.evaluate("document.activeElement.textContent") == "Close"
        page.keyboard.press("Enter")
        assert page.locator("#open-history:focus").is_visible()


def test_space_in_the_history_deletes_nothing(pages: Pages, logs: Path) -> None:
    """The first element that can have the focus is what turns the history off."""
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "space.log") as server:
        page = pages.open(server)
        for prompt in ("one", "two"):
            send(page, prompt=prompt, n="1")
            ended(page)
        page.focus("#open-history")
        page.keyboard.press("Space")
        page.keyboard.press("Space")
        assert page.is_hidden("#history")
        page.keyboard.press("Space")
        assert page.locator("#history-list .prompt").all_text_contents() == ["two", "one"]
        page.get_by_role("checkbox", name="Unticking deletes them").uncheck()
        assert page.text_content("#history [role=status]") == "Deleted: 2 requests"
        page.keyboard.press("Escape")
        page.click("#open-history")
        assert page.text_content("#history [role=status]") == "", "it is said once"


def test_a_key_that_was_just_typed_is_sent_with(pages: Pages, logs: Path) -> None:
    """The models are listed with it first, which takes its time."""
    with (
        scripted(Behaviour()) as upstream,
        gateway(upstream.url, "--api-key", "right", log=logs / "typed.log") as server,
    ):
        page = pages.open(server)
        page.fill("[name=key]", "wrong")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#key-field .problem:has-text('API key is missing or invalid')")
        page.wait_for_selector("[name=key]:focus")
        assert page.text_content("#status") == ""
        page.fill("[name=key]", "right")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(".choice .finish:has-text('stop')")
        assert [call.body["model"] for call in upstream.calls] == ["fake-model"] * 4


def test_a_request_waits_for_the_models(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "awaited.log") as server:
        page = pages.open(server).context.new_page()  # a tab that has no draft
        late: list[Any] = []
        page.route("**/v1/models", lambda route: late.append(route), times=1)
        page.goto(server.url)
        send(page, n="2")
        page.wait_for_selector("#status:has-text('Waiting for the list of models')")
        late[0].continue_()
        page.wait_for_selector(".choice .finish:has-text('stop')")
        assert [call.body["model"] for call in upstream.calls] == ["fake-model"] * 2


def test_models_that_come_while_one_is_typed_take_the_focus_along(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "typing.log") as server:
        page = pages.open(server)
        late: list[Any] = []
        page.route("**/v1/models", lambda route: late.append(route), times=1)
        page.reload()
        while not late:
            page.wait_for_timeout(50)
        late[0].fulfill(json={"object": "list", "data": []})
        page.focus("[name=typed-model]")
        page.wait_for_selector("select[name=model]:focus")

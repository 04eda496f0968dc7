"""The page in its main states, looked at by axe-core."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.upstream import Behaviour
from tests.real.metrics import wait_for
from tests.system.axe import found
from tests.system.playground.servers import gateway, scripted
from tests.system.playground.window import PHONE, Pages, begun, ended, send, view


def test_a_page_that_was_just_opened_and_its_dialogs(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "axe-new.log") as server:
        page = pages.open(server)
        page.click("#each > summary")
        assert found(page) == []
        page.evaluate("delete Object.getPrototypeOf(navigator).clipboard")  # so that there is a dialog to copy from
        for button, dialog in (("#open-keys", "#keys"), ("#open-history", "#history"), ("#copy-curl", "#paste")):
            page.click(button)
            page.wait_for_selector(dialog)
            assert found(page) == [], dialog
            page.keyboard.press("Escape")


def test_a_request_from_its_key_to_its_end(pages: Pages, logs: Path) -> None:
    says = Behaviour(hold_after=2)
    with scripted(says) as upstream, gateway(upstream.url, "--api-key", "right", log=logs / "axe-run.log") as server:
        page = pages.open(server)
        assert found(page) == [], "a key is asked for"
        send(page, key="right", n="3")
        begun(page, 3)
        assert found(page) == [], "under way"
        page.set_viewport_size(PHONE)
        focusable = "document.querySelector('#columns').tabIndex === 0"  # once the page is told of its size
        wait_for(lambda: page.evaluate(focusable), seconds=20.0, what="columns for the keyboard")
        assert found(page) == [], "swiped through"
        page.focus("#columns")
        page.keyboard.press("ArrowRight")
        moved = "document.querySelector('#columns').scrollLeft > 0"
        wait_for(lambda: page.evaluate(moved), seconds=20.0, what="the next answer")
        upstream.go_on()
        ended(page)
        assert found(page) == [], "done"
        for name in ("Differences", "Probabilities"):
            view(page, name)
            assert found(page) == [], name
        page.focus(".choice .token")
        page.wait_for_selector("#tip")
        assert found(page) == [], "alternatives"
        page.click("#open-history")
        assert found(page) == [], "history"


def test_a_failure(pages: Pages, logs: Path) -> None:
    refused = Behaviour(status=400, body=b'{"error": {"message": "Too wide.", "param": "n"}}')
    with scripted(refused) as upstream, gateway(upstream.url, log=logs / "axe-failure.log") as server:
        page = pages.open(server)
        send(page)
        page.wait_for_selector("#failure:visible")
        assert found(page) == []

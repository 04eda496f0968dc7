"""What the page keeps in this browser, and only as long as the user wants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.upstream import Behaviour
from tests.real.metrics import wait_for
from tests.real.processes import Server
from tests.system.browser import picture
from tests.system.playground.servers import gateway, scripted
from tests.system.playground.window import LINE, Pages, begun, ended, finishes, send, texts, view


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


ENTRY = "nproxy.history.1"
NAMED = f"(name) => name.startsWith('{ENTRY}.')"


def corrupt(entries: Any) -> list[Any]:
    """Return corrupted variants of one good entry, as other code may have left them in the storage."""
    [good] = entries
    values, run = good["values"], good["run"]
    [choice] = run["choices"]
    return [
        None,
        7,
        {},
        {**good, "values": {**values, "each": None}},
        {**good, "values": {**values, "prompt": 5}},
        {**good, "values": {**values, "n": "3"}},
        {**good, "run": None},
        {**good, "run": {**run, "choices": [None]}},
        {**good, "run": {**run, "choices": [{**choice, "text": None}]}},
        {**good, "run": {**run, "answered": None}},
        {**good, "at": "yesterday"},
    ]


def test_entries_that_are_none_are_left_out(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "corrupt.log") as server:
        page = pages.open(server)
        send(page, prompt="good", n="1")
        ended(page)
        said = texts(page)
        [text] = page.evaluate(f"Object.keys(localStorage).filter({NAMED}).map((name) => localStorage[name])")
        good = [json.loads(text)]
        broken = corrupt(good)
        for entries in (*([one, *good] for one in broken), [*broken, *good]):
            page.evaluate("localStorage.clear()")
            for at, entry in enumerate(entries):
                page.evaluate(
                    f"([at, entry]) => {{ localStorage['{ENTRY}.' + at] = JSON.stringify(entry) }}", [at, entry]
                )
            page.evaluate("sessionStorage.clear()")
            page.reload()
            page.click("#open-history")
            assert page.locator("#history-list .prompt").all_text_contents() == ["good"], entries[0]
            page.click("#history-list button")
            assert texts(page) == said
        assert pages.wrong == []


def test_an_entry_of_a_model_that_is_not_offered_any_more_says_so(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "former.log") as server:
        page = pages.open(server)
        send(page, n="1")
        ended(page)
        former = """([name, model]) => {
          const key = Object.keys(localStorage).find((one) => one.startsWith(name));
          localStorage[key] = localStorage[key].replaceAll("fake-model", model);
        }"""
        page.evaluate(former, [f"{ENTRY}.", "a-former-model"])
        page.click("#open-history")
        page.click("#history-list button")
        assert page.input_value("[name=model]") == "a-former-model"
        assert page.locator("[name=model] option:checked").text_content() == "a-former-model (not offered)"
        send(page)
        ended(page)
        assert upstream.calls[-1].body["model"] == "a-former-model"


def test_an_entry_says_why_it_has_no_probabilities(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "unkept.log") as server:
        page = pages.open(server)
        for logprobs, why in ((True, "The history keeps no"), (False, "came with this answer")):
            page.set_checked("[name=logprobs]", logprobs)
            send(page, n="1")
            ended(page)
            page.click("#open-history")
            page.click("#history-list button >> nth=0")
            view(page, "Probabilities")
            assert why in page.text_content(".choice .remark")


FULL = """() => {
  for (let size = 1 << 20; size >= 1; size = Math.floor(size / 2)) {
    try { for (let at = 0; ; at += 1) localStorage[`fill.${size}.${at}`] = "x".repeat(size); } catch { }
  }
}"""
DENIED = """for (const name of ["localStorage", "sessionStorage"])
  Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });"""


def test_a_full_storage_keeps_nothing_and_breaks_nothing(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "full.log") as server:
        page = pages.open(server)
        page.evaluate(FULL)
        send(page, n="2")
        ended(page)
        assert all(texts(page))
        page.click("#open-history")
        assert page.text_content("#history-list") == "Nothing is kept."


def test_without_storages_the_page_works(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "denied.log") as server:
        page = pages.open(server)
        page.add_init_script(DENIED)
        page.reload()
        page.wait_for_selector("select[name=model]:visible")
        send(page, n="2")
        ended(page)
        assert all(texts(page))
        page.click("#open-history")
        page.click("#history-wanted")
        assert page.is_checked("#history-wanted"), "no wish is kept either"


def test_two_tabs_keep_what_both_have_asked(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "tabs.log") as server:
        page = pages.open(server)
        other = page.context.new_page()
        other.goto(server.url)
        other.wait_for_selector("select[name=model]:visible")
        for tab, prompt in ((page, "here"), (other, "there"), (page, "here again")):
            send(tab, prompt=prompt, n="1")
            ended(tab)
        page.click("#open-history")
        assert page.locator("#history-list .prompt").all_text_contents() == ["here again", "there", "here"]


@pytest.mark.parametrize("left", ["reload", "away and back"])
def test_what_was_typed_is_there_again_and_what_had_come_is_in_the_history(pages: Pages, logs: Path, left: str) -> None:
    with (
        scripted(Behaviour(hold_after=2)) as upstream,
        gateway(upstream.url, log=logs / f"left-{left.split()[0]}.log") as server,
    ):
        page = pages.open(server)
        send(page, prompt="asked", n="3")
        begun(page, 3)
        page.fill("[name=prompt]", "typed meanwhile")
        page.click("#each > summary")
        page.fill("[name='each.2.seed']", "8")
        if left == "reload":
            page.reload()
        else:
            page.goto(f"{server.url}/docs")
            page.go_back()
        page.wait_for_selector("#status:has-text('What had come is in the History')")
        assert page.input_value("[name=prompt]") == "typed meanwhile"
        assert (page.input_value("[name=n]"), page.input_value("[name='each.2.seed']")) == ("3", "8")
        assert (finishes(page), page.is_visible("#send")) == ([], True)
        wait_for(lambda: not upstream.open_calls, seconds=20.0, what="the end of all calls")
        page.reload()
        page.wait_for_selector("select[name=model]:visible")
        assert "History" not in page.text_content("#status"), "it is said once"
        assert page.input_value("[name=prompt]") == "typed meanwhile"
        page.click("#open-history")
        assert page.locator("#history-list .prompt").all_text_contents() == ["asked"]
        page.click("#history-list button")
        assert (finishes(page), all(texts(page))) == (["stopped"] * 3, True)


@pytest.mark.parametrize("why", ["nothing came", "no room"])
def test_what_is_not_kept_is_not_said_to_be_in_the_history(pages: Pages, logs: Path, why: str) -> None:
    held = Behaviour(hold_after=0 if why == "nothing came" else 2)
    with scripted(held) as upstream, gateway(upstream.url, log=logs / f"left-{why.split()[0]}.log") as server:
        page = pages.open(server)
        if why == "no room":
            page.evaluate(FULL)
        send(page, n="2")
        if why == "no room":
            begun(page, 2)
        else:
            wait_for(lambda: len(upstream.open_calls) == 2, seconds=20.0, what="the calls")
        page.reload()
        page.wait_for_selector("#status:has-text('that was stopped')")
        assert "History" not in page.text_content("#status")
        page.click("#open-history")
        assert page.text_content("#history-list") == "Nothing is kept."


def test_a_tab_that_is_closed_ends_its_calls(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour(hold_after=2)) as upstream, gateway(upstream.url, log=logs / "closed.log") as server:
        page = pages.open(server)
        send(page, n="3")
        begun(page, 3)
        assert len(upstream.open_calls) == 3
        page.close()
        wait_for(lambda: not upstream.open_calls, seconds=20.0, what="the end of all calls")

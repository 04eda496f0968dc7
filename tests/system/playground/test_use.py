"""Unusual use of the page: buttons pressed twice, actions during a request, right-to-left text."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.upstream import Behaviour
from tests.system.playground.servers import gateway, scripted
from tests.system.playground.window import Pages, begun, ended, finishes, send, texts, view


def test_a_button_that_is_pressed_twice_gets_its_name_back(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "twice.log") as server:
        page = pages.open(server, permissions=["clipboard-read", "clipboard-write"])
        page.click("#copy-curl")
        page.wait_for_selector("#copy-curl:has-text('Copied')")
        page.click("#copy-curl")
        page.wait_for_timeout(3500)  # both timers have expired
        assert page.text_content("#copy-curl") == "Copy as curl"
        page.fill("[name=n]", "99")
        page.click("#copy-curl")
        page.wait_for_timeout(500)
        assert page.text_content("#copy-curl") == "Copy as curl", "no request that the form refuses"


def test_an_entry_is_shown_while_another_is_under_way(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "under-way.log") as server:
        page = pages.open(server)
        send(page, prompt="first", n="2")
        ended(page)
        said = texts(page)
        upstream.behaviour = Behaviour(hold_after=2)
        send(page, prompt="second", n="3")
        begun(page, 3)
        page.click("#open-history")
        page.click("#history-list button")
        ended(page)
        assert (texts(page), page.input_value("[name=prompt]")) == (said, "first")
        page.click("#open-history")
        kept = page.locator("#history-list .prompt").all_text_contents()
        assert kept == ["second", "first"], "what was stopped is kept as far as it came"
        page.click("#history-list button >> nth=0")
        assert finishes(page) == ["stopped"] * 3


def test_writing_that_runs_from_right_to_left(pages: Pages, logs: Path) -> None:
    says = Behaviour(pieces=lambda _: ["שלום, עולם.\n", "Hello."])
    with scripted(says) as upstream, gateway(upstream.url, log=logs / "bidi.log") as server:
        page = pages.open(server)
        send(page, n="1")
        ended(page)
        for name in ("Text", "Differences"):
            view(page, name)
            first, last = page.locator(".choice .text").evaluate(EDGES)
            assert first["right"] < 4 < first["left"], f"at the right edge: {first}"
            assert last["left"] < 4 < last["right"], f"at the left edge: {last}"


def test_the_table_of_alternatives_goes_with_its_token(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "tip.log") as server:
        page = pages.open(server)
        send(page, n="1")
        ended(page)
        view(page, "Probabilities")
        page.focus("[name=prompt]")
        page.locator(".choice .token").first.hover()
        assert page.is_visible("#tip")
        gone = """() => {
          document.querySelector("[name=prompt]").dispatchEvent(
            new KeyboardEvent("keydown", { key: "Enter", ctrlKey: true, bubbles: true, cancelable: true }));
          return document.querySelector("#tip").hidden;
        }"""
        assert page.evaluate(gone), "at once, and not when the pointer moves"
        ended(page)


def test_a_double_click_and_a_held_key_send_once(pages: Pages, logs: Path) -> None:
    """Stop takes the place of Send, and the other way round."""
    with scripted(Behaviour(hold_after=2)) as upstream, gateway(upstream.url, log=logs / "double.log") as server:
        page = pages.open(server)
        page.fill("[name=n]", "1")
        page.dblclick("#send")
        begun(page, 1)
        assert page.is_visible("#stop")
        page.wait_for_timeout(600)  # longer than a double click
        page.dblclick("#stop")
        ended(page)
        page.wait_for_timeout(300)
        assert (finishes(page), len(upstream.calls)) == (["stopped"], 1)
        for key, focus in (("Enter", "#send"), ("Control+Enter", "[name=prompt]")):
            page.focus(focus)
            for _ in range(4):
                page.keyboard.down(key.split("+")[0])
                page.keyboard.down("Enter")
                page.wait_for_timeout(50)
            assert page.is_visible("#stop"), key
            page.keyboard.up("Enter")
            page.keyboard.up("Control")
            page.keyboard.press("Escape")
            ended(page)
        assert len(upstream.calls) == 3


def test_what_is_set_for_a_choice_outlives_the_typing_of_another_n(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "retyped.log") as server:
        page = pages.open(server)
        page.click("#each > summary")
        page.fill("[name='each.3.seed']", "8")
        page.focus("[name=n]")
        for key in ("Backspace", "Tab", "Shift+Tab", "1", "2"):
            page.keyboard.press(key)
        assert page.input_value("[name='each.3.seed']") == "8"
        assert page.locator("#each-rows .row").count() == 12
        page.fill("[name=n]", "3")
        page.keyboard.press("Tab")
        assert page.locator("#each-rows .row").count() == 3


def test_a_very_long_prompt_is_a_short_name_in_the_history(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "very-long.log") as server:
        page = pages.open(server)
        page.locator("[name=prompt]").evaluate("(field) => { field.value = 'word '.repeat(10_000) }")
        page.click("#send")
        ended(page)
        page.click("#open-history")
        assert len(page.text_content("#history-list .prompt")) <= 200
        page.click("#history-list button")
        assert len(page.input_value("[name=prompt]")) == 50_000, "whole"


EDGES = """(element) => {
  const node = document.createTreeWalker(element, NodeFilter.SHOW_TEXT).nextNode();
  const box = element.getBoundingClientRect();
  const at = (from, to) => {
    const range = new Range();
    range.setStart(node, from);
    range.setEnd(node, to);
    const { left, right } = range.getBoundingClientRect();
    return { left: left - box.left, right: box.right - right };
  };
  const line = node.data.indexOf("\\n");
  return [at(0, line), at(line + 1, node.data.length)];
}"""
"""Returns how far the first and the last line of a text are from the edges of its element, in pixels."""

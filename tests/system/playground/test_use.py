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

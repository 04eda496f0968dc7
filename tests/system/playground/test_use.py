"""Unusual use of the page: buttons pressed twice, actions during a request, right-to-left text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.fakes.upstream import Behaviour
from tests.system.playground.servers import gateway, scripted
from tests.system.playground.window import PHONE, WIDE, Pages, begun, ended, finishes, send, texts, view


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


def streamed(page: Any, *entries: dict[str, Any]) -> None:
    """Answer the page's next requests with one choice of these log probability entries, without a server."""
    chunk = {
        "object": "chat.completion.chunk",
        "choices": [
            {
                "index": 0,
                "delta": {"content": "".join(entry.get("token", "") for entry in entries)},
                "logprobs": {"content": list(entries)},
                "finish_reason": "stop",
            }
        ],
    }
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))


def test_numbers_beside_a_token_stay_in_their_order_whatever_it_says(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "caption.log") as server:
        page = pages.open(server)
        streamed(page, {"token": "שלום", "logprob": -1.0}, {"token": "\u202eabc", "logprob": -1.0})
        send(page, n="1")
        ended(page)
        view(page, "Probabilities")
        for token in page.locator(".choice .token").all():
            token.hover()
            assert page.text_content("#tip caption").endswith("  36.8 %  (log -1.000)")
            places = page.evaluate(
                """() => {
                  const text = document.querySelector("#tip caption").lastChild;
                  const range = document.createRange();
                  return [...text.data].map((_, at) => {
                    range.setStart(text, at);
                    range.setEnd(text, at + 1);
                    return range.getBoundingClientRect().left;
                  });
                }"""
            )
            assert places == sorted(places), "from left to right"


def test_the_table_of_a_character_of_several_tokens_fits_into_the_window(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "tall.log") as server:
        page = pages.open(server)
        others = [{"token": f"t{place}", "logprob": -2.0 - place} for place in range(20)]
        parts = [
            {"token": "\ufffd", "bytes": [byte], "logprob": -1.0, "top_logprobs": others} for byte in "🎈".encode()
        ]
        streamed(page, *parts)
        send(page, n="1")
        ended(page)
        view(page, "Probabilities")
        for viewport in (WIDE, PHONE, {"width": 740, "height": 360}):
            page.set_viewport_size(viewport)
            page.locator(".choice .token").first.scroll_into_view_if_needed()
            page.focus("[name=prompt]")
            page.locator(".choice .token").first.hover()
            tip = page.locator("#tip").bounding_box()
            assert tip["y"] >= 0, viewport
            assert tip["y"] + tip["height"] <= viewport["height"], viewport
            assert tip["x"] + tip["width"] <= viewport["width"], viewport


def test_entries_without_a_number_are_shown_as_unknown(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "unknown.log") as server:
        page = pages.open(server)
        streamed(page, {"token": "a", "logprob": None}, {"token": "b", "logprob": -0.01})
        send(page, n="1")
        ended(page)
        view(page, "Probabilities")
        unknown, known = page.locator(".choice .token").all()
        assert (unknown.get_attribute("class").split(), known.get_attribute("class").split()) == (
            ["token"],
            ["token", "shade-0"],
        )
        unknown.hover()
        assert page.text_content("#tip caption") == "a  ?"
    assert pages.wrong == []


def test_entries_of_unexpected_shapes_are_shown_as_far_as_they_can_be_read(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "shapes.log") as server:
        page = pages.open(server)
        odd: list[Any] = [{"token": "a", "logprob": "-1", "top_logprobs": {}}, {"token": "b", "top_logprobs": [None]}]
        streamed(page, *odd)
        send(page, n="1")
        ended(page)
        view(page, "Probabilities")
        for token, name in zip(page.locator(".choice .token").all(), "ab", strict=True):
            token.hover()
            assert page.text_content("#tip caption") == f"{name}  ?"


def test_an_answer_without_probabilities_is_shown_as_text(pages: Pages, logs: Path) -> None:
    says = Behaviour(hold_after=3, pieces=lambda seed: [{"reasoning_content": "Hm."}, "a", "b"], logprobs=False)
    with scripted(says) as upstream, gateway(upstream.url, log=logs / "plain.log") as server:
        page = pages.open(server)
        view(page, "Probabilities")
        send(page, n="1")
        begun(page, 1)
        assert page.is_visible(".reasoning")
        upstream.go_on()
        ended(page)
        assert texts(page) == ["ab"]
        assert page.text_content(".choice .remark") == "No log probabilities came with this answer."


def test_reasoning_is_shown_while_there_is_no_answer(pages: Pages, logs: Path) -> None:
    thought: list[Any] = [{"reasoning_content": "Hm. "}, {"reasoning_content": "Well."}]
    cut = Behaviour(pieces=lambda _: thought, finish="length", logprobs=False)
    with scripted(cut) as upstream, gateway(upstream.url, log=logs / "reasoning.log") as server:
        page = pages.open(server)
        send(page, n="1")
        ended(page)
        assert page.is_visible(".thought:has-text('Hm. Well.')")
        why = "It ended before it answered: all its tokens were reasoning. Raise Max tokens."
        assert page.text_content(".choice .remark") == why
        upstream.behaviour = Behaviour(pieces=lambda _: [*thought, "So."], hold_after=3, logprobs=False)
        send(page, n="2")
        page.wait_for_selector(".choice:nth-child(2) .thought:has-text('Well.')")
        for _ in range(2):
            page.click(".choice:nth-child(2) summary")  # fold it and unfold it: it is the user's now
        assert page.is_visible(".choice:first-child .thought")
        upstream.go_on()
        ended(page)
        assert texts(page) == ["So.", "So."]
        assert [thought.is_visible() for thought in page.locator(".thought").all()] == [False, True]
        assert page.locator(".choice .remark").all_text_contents() == ["", "The same text as choice 0."]


def test_a_text_stays_one_tab_stop_after_a_click(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "stops.log") as server:
        page = pages.open(server)
        streamed(page, *({"token": token, "logprob": -1.0} for token in "abcd"))
        send(page, n="1")
        ended(page)
        view(page, "Probabilities")
        page.locator(".choice .token").nth(2).click()
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.textContent") == "d"
        assert page.locator(".choice .token[tabindex='0']").all_text_contents() == ["d"]


def test_tool_calls_are_shown(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "calls.log") as server:
        page = pages.open(server)
        call = {"index": 0, "id": "c", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
        choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}
        body = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
        page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
        send(page, n="1")
        ended(page)
        assert page.text_content(".choice .calls") == 'add({"x": 1})'
        page.click("#open-history")
        page.click("#history-list button")
        assert page.text_content(".choice .calls") == 'add({"x": 1})', "it is kept"


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


def test_alternatives_count_only_beside_log_probabilities(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "alternatives.log") as server:
        page = pages.open(server)
        page.fill("[name=top_logprobs]", "99")
        page.uncheck("[name=logprobs]")
        send(page, n="1")
        page.wait_for_selector(".choice .finish:has-text('stop')")
        assert "logprobs" not in upstream.calls[-1].body
        page.reload()
        assert page.is_disabled("[name=top_logprobs]")
        page.check("[name=logprobs]")
        page.wait_for_selector("[name=top_logprobs]:enabled:invalid")


def test_the_time_goes_on_while_nothing_comes(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour(hold_after=0)) as upstream, gateway(upstream.url, log=logs / "stall.log") as server:
        page = pages.open(server)
        for chunks, before in ((0, "Waiting for the first token · "), (2, "tokens")):
            upstream.behaviour = Behaviour(hold_after=chunks)
            send(page, n="2")
            page.wait_for_selector(f"#status:has-text('{before}')")
            if chunks:
                begun(page, 2)
            page.wait_for_timeout(300)  # what has come is painted
            first = page.text_content("#status")
            page.wait_for_timeout(300)
            assert page.text_content("#status") != first
            page.keyboard.press("Escape")
            ended(page)


def test_many_columns_take_turns_in_growing(pages: Pages, logs: Path) -> None:
    """The text of a column is laid out again as it grows; sixteen of them at once would take longer than a frame."""
    says = Behaviour(pieces=lambda seed: [f" {seed}"] * 40, pause=0.02)
    with scripted(says) as upstream, gateway(upstream.url, log=logs / "turns.log") as server:
        page = pages.open(server)
        page.evaluate(WATCH)
        send(page, n="16")
        ended(page)
        grown = page.evaluate("grown")
        assert set().union(*grown) == set(range(16)), "each had its turn"
        assert max(map(len, grown)) <= 4
        assert all(len(text.split()) == 40 for text in texts(page))


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


WATCH = """() => {
  window.grown = [];
  new MutationObserver((records) => {
    const texts = [...document.querySelectorAll(".choice .text")];
    const grew = texts.flatMap((text, at) => (records.some(({ target }) => text.contains(target)) ? [at] : []));
    if (document.querySelector("#send").hidden) window.grown.push(grew);
  }).observe(document.querySelector("#columns"), { subtree: true, childList: true, characterData: true });
}"""
"""Records in `grown` which texts change together while an answer is in progress."""

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

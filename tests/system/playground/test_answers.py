"""Answers of the real model: side by side, stopped, shaded, compared."""

from __future__ import annotations

import httpx
import pytest

from tests.real.metrics import wait_for
from tests.real.processes import Server
from tests.system.browser import picture
from tests.system.playground.servers import asked
from tests.system.playground.window import LINE, Pages, begun, ended, finishes, send, texts, view


@pytest.mark.model
def test_four_answers_come_side_by_side(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road)
    send(page, prompt=LINE, n="4", seed="11", max_tokens="60")
    begun(page, 4)
    if page.is_visible("#stop"):  # a fast machine may have finished by now
        picture(page, "streaming")
    ended(page)
    whole = asked(engine_road, n=4, seed=11, max_tokens=60)
    assert texts(page) == [choice["message"]["content"] for choice in whole["choices"]]
    assert finishes(page) == [choice["finish_reason"] for choice in whole["choices"]]
    lefts = {round(page.locator(".choice").nth(index).bounding_box()["x"]) for index in range(4)}
    tops = {round(page.locator(".choice").nth(index).bounding_box()["y"]) for index in range(4)}
    assert (len(lefts), len(tops)) == (4, 1), "side by side"
    status = page.locator("#status").text_content()
    assert f"{whole['usage']['completion_tokens']} tokens" in status
    assert f"{whole['usage']['prompt_tokens']} prompt tokens" in status
    assert "relay by engine" in status
    counts = page.locator(".choice .counts").all_text_contents()
    assert all("/s" in said and "first after" in said and "≈" not in said for said in counts), counts
    picture(page, "four-answers")


@pytest.mark.model
def test_esc_stops_all_of_them(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road)
    send(page, prompt="Count to a thousand, word by word.", n="4", max_tokens="4000")
    begun(page, 4)
    page.keyboard.press("Escape")
    ended(page)
    assert "stopped" in finishes(page)
    assert set(finishes(page)) <= {"stopped", "stop", "length"}
    assert all(texts(page)), "what had come stays"
    assert not page.is_visible("#failure")
    picture(page, "stopped")

    def choices_in_flight() -> str:
        exposition = httpx.get(f"{engine_road.url}/metrics", trust_env=False).text
        [line] = [line for line in exposition.splitlines() if line.startswith("nproxy_inflight_choices ")]
        return line.split()[1]

    wait_for(lambda: float(choices_in_flight()) == 0, seconds=30.0, what="the end of all calls")


@pytest.mark.model
def test_probabilities_and_their_alternatives(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road)
    send(page, prompt=LINE, n="2", seed="5", max_tokens="30", top_logprobs="4")
    ended(page)
    said = texts(page)
    view(page, "Probabilities")
    shaded = texts(page)
    assert [one.startswith(text) for one, text in zip(shaded, said, strict=True)] == [True, True]
    assert page.is_visible("#legend")
    entries = asked(engine_road, n=2, seed=5, max_tokens=30, logprobs=True, top_logprobs=4)["choices"][1]["logprobs"][
        "content"
    ]
    token = page.locator(".choice").nth(1).locator(".token").nth(3)
    token.hover()
    assert page.is_visible("#tip")
    rows = page.locator("#tip tr").count()
    assert rows == 4 + (entries[3]["token"] not in [one["token"] for one in entries[3]["top_logprobs"]])
    assert page.locator("#tip tr.drawn td").first.text_content() == entries[3]["token"].replace(" ", "␣")
    picture(page, "probabilities")
    page.mouse.move(5, 5)
    assert not page.is_visible("#tip")
    token.focus()
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#tip")
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "tip"
    assert page.locator("#tip caption").text_content().startswith(entries[4]["token"].replace(" ", "␣"))
    page.keyboard.press("Escape")
    assert not page.is_visible("#tip")


@pytest.mark.model
def test_differences_and_what_is_a_choices_own(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road)
    page.fill("[name=n]", "3")
    page.click("#each > summary")
    for index in (0, 1):
        page.fill(f"[name='each.{index}.temperature']", "0")
    page.fill("[name='each.2.max_tokens']", "2")
    send(page, prompt=LINE, max_tokens="24")
    ended(page)
    first, second, third = texts(page)
    assert first == second
    assert finishes(page)[2] == "length"
    remarks = page.locator(".choice .remark").all_text_contents()
    assert remarks == ["", "The same text as choice 0.", ""]
    assert page.locator(".choice .own").all_text_contents() == ["temperature 0", "temperature 0", "max_tokens 2"]
    view(page, "Differences")
    assert texts(page) == [first, second, third]
    assert page.locator(".choice").nth(1).locator("mark").count() == 0
    marked = page.locator(".choice").nth(2).locator("mark").all_text_contents()
    assert all(not one.strip() or one.strip() in third for one in marked)
    picture(page, "differences")
    page.fill("[name='each.0.temperature']", "1")
    page.fill("[name='each.1.seed']", "7")
    page.click("#open-history")
    page.click("#history-list button")
    assert page.input_value("[name='each.0.temperature']") == "0", "as it was asked"
    assert page.input_value("[name='each.1.seed']") == ""

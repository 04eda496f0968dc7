"""Model output is shown as text, whatever it contains."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.upstream import Behaviour
from tests.system.browser import difference, picture
from tests.system.playground.servers import gateway, scripted
from tests.system.playground.window import Pages, begun, ended, send, texts, view

VISIBLE = 16
"""Color values, of 255, that differ by so much may be seen; rounded corners differ by 1 from drawing to drawing."""

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_what_a_model_says_is_text_and_no_markup(pages: Pages, logs: Path) -> None:
    says = Behaviour(pieces=lambda seed: [{"reasoning_content": MARKUP}, MARKUP, " **bold**", f" {seed}"])
    with scripted(says) as upstream, gateway(upstream.url, log=logs / "markup.log") as server:
        page = pages.open(server)
        page.on("dialog", lambda dialog: pages.wrong.append(dialog.message))
        send(page, n="2")
        ended(page)
        for name in ("Text", "Probabilities", "Differences"):
            view(page, name)
            assert all(text.startswith(f"{MARKUP} **bold**") for text in texts(page))
            assert page.locator(".choice img, .choice script").count() == 0
        page.locator(".reasoning > summary").first.click()
        assert page.locator(".thought").all_text_contents() == [MARKUP, MARKUP]
        assert page.locator(".choice img, .choice script").count() == 0
        picture(page, "markup")


def test_no_script_of_the_page_can_make_markup_of_text(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "trusted.log") as server:
        page = pages.open(server)
        tried = "(element) => { try { element.innerHTML = '<b>x</b>' } catch (error) { return error.name } }"
        assert page.locator("#status").evaluate(tried) == "TypeError"
        assert page.locator("#status b").count() == 0
        said = [pages.wrong.pop() for _ in list(pages.wrong)]
        assert all("TrustedHTML" in one for one in said), said


def test_marks_that_pile_up_stay_within_their_choice(pages: Pages, logs: Path) -> None:
    says = Behaviour(pieces=lambda seed: ["Z" + "\u0301" * 200])
    with scripted(says) as upstream, gateway(upstream.url, log=logs / "marks.log") as server:
        page = pages.open(server)
        page.wait_for_selector("#docs:visible")
        bar = page.locator(".bar")
        before = bar.screenshot()
        send(page, n="4")
        ended(page)
        picture(page, "marks")
        drawn = difference(page, bar.screenshot(), before)
        assert drawn < VISIBLE, "the answers draw nothing over it"


SELECTED = "getSelection().toString()"
CHANGES = """(element) => {
  globalThis.seen = [];
  new MutationObserver((all) => seen.push(...all.map((one) => one.type)))
    .observe(element, { childList: true, characterData: true, subtree: true });
  getSelection().selectAllChildren(element);
}"""


def test_what_is_selected_stays_so_while_more_text_comes(pages: Pages, logs: Path) -> None:
    says = Behaviour(hold_after=2, pieces=lambda seed: ["one ", "two ", "three ", "four"])
    with scripted(says) as upstream, gateway(upstream.url, log=logs / "selected.log") as server:
        page = pages.open(server)
        send(page, n="2")
        begun(page, 2)
        text = page.locator(".choice .text").first
        before = text.text_content()
        text.evaluate(CHANGES)
        upstream.go_on()
        ended(page)
        assert texts(page) == ["one two three four"] * 2
        assert page.evaluate(SELECTED).startswith(before.strip())
        assert set(page.evaluate("seen")) == {"characterData"}, "what is shown is added to, and not set again"

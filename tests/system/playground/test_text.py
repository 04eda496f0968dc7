"""What models say, whatever it is, is text."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.upstream import Behaviour
from tests.system.browser import picture
from tests.system.playground.servers import gateway, scripted
from tests.system.playground.window import Pages, ended, send, texts, view

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

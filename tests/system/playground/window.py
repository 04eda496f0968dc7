"""A window with the playground: open it, fill in the form, send, read. It reads only what a user can see."""

from __future__ import annotations

from typing import Any

from tests.real.metrics import wait_for
from tests.real.processes import Server

WAIT = 60_000
"""Milliseconds to wait for anything."""

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 375, "height": 740}
LINE = "Name a color and say why you like it."


class Pages:
    """Opens the playground in new browser contexts, and records errors in their consoles."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.wrong: list[str] = []
        self.contexts: list[Any] = []

    def open(self, server: Server, *, viewport: dict[str, int] = WIDE, **options: Any) -> Any:
        context = self.browser.new_context(viewport=viewport, **options)
        context.set_default_timeout(WAIT)
        self.contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", self._hear)
        page.goto(server.url)
        page.wait_for_selector(":is([name=model], [name=typed-model]):not([hidden])", state="attached")
        return page

    def _hear(self, message: Any) -> None:
        expected = "Failed to load resource"  # what the browser logs for any status from 400 on
        if message.type in ("error", "warning") and expected not in message.text:
            self.wrong.append(message.text)


def send(page: Any, **fields: str) -> None:
    """Fill in the form and send it with the keyboard."""
    for name, value in fields.items():
        page.fill(f"[name={name}]", value)
    page.focus("[name=prompt]")
    page.keyboard.press("Control+Enter")


def begun(page: Any, n: int) -> None:
    """Wait until all n choices have text. The page's content policy rules out Playwright's `wait_for_function`."""
    wait_for(lambda: len(texts(page)) == n and all(texts(page)), seconds=WAIT / 1000, what="text of all choices")


def ended(page: Any) -> None:
    """Wait until a request has ended."""
    page.wait_for_selector("#send:visible")


def view(page: Any, name: str) -> None:
    page.get_by_role("radio", name=name, exact=True).check(force=True)


def texts(page: Any) -> list[str]:
    found: list[str] = page.locator(".choice .text").all_text_contents()
    return found


def finishes(page: Any) -> list[str]:
    found: list[str] = page.locator(".choice .finish").all_text_contents()
    return found

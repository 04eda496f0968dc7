"""The playground in Debian's Chromium, with the default model behind it, and its modules in Node.js.

Every scene leaves pictures in build/screenshots. A page that logs an error, or breaks its own policy, fails its test.
"""

from __future__ import annotations

import ast
import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.real.fixtures import MODEL
from tests.real.metrics import wait_for
from tests.real.processes import Server, free_port, nproxy
from tests.system.browser import chromium, picture
from tests.system.tools import NODE, needed

SCRIPTS = Path(__file__).with_name("playground")
WAIT = 60_000
"""Milliseconds for what comes by itself."""

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 375, "height": 740}
LINE = "Name a color and say why you like it."


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


class Pages:
    """Opens the playground in a window of its own, and hears what goes wrong in it."""

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
        expected = "Failed to load resource"  # what it says of any status from 400 on
        if message.type in ("error", "warning") and expected not in message.text:
            self.wrong.append(message.text)


@pytest.fixture
def pages(browser: Any) -> Iterator[Pages]:
    opened = Pages(browser)
    yield opened
    for context in opened.contexts:
        context.close()
    assert opened.wrong == []


def send(page: Any, **fields: str) -> None:
    """Fill in the form and send it, by the keyboard."""
    for name, value in fields.items():
        page.fill(f"[name={name}]", value)
    page.focus("[name=prompt]")
    page.keyboard.press("Control+Enter")


def begun(page: Any, n: int) -> None:
    """Wait until all n choices have some text. The page's own policy keeps Playwright's `wait_for_function` out."""
    wait_for(lambda: len(texts(page)) == n and all(texts(page)), seconds=WAIT / 1000, what="text of all choices")


def ended(page: Any) -> None:
    """Wait until a request is over."""
    page.wait_for_selector("#send:visible")


def view(page: Any, name: str) -> None:
    page.get_by_role("radio", name=name, exact=True).check(force=True)


def texts(page: Any) -> list[str]:
    found: list[str] = page.locator(".choice .text").all_text_contents()
    return found


def finishes(page: Any) -> list[str]:
    found: list[str] = page.locator(".choice .finish").all_text_contents()
    return found


# ---- the real model


@pytest.mark.model
def test_four_answers_come_side_by_side(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road)
    send(page, prompt=LINE, n="4", seed="11", max_tokens="60")
    begun(page, 4)
    if page.is_visible("#stop"):  # a quick machine may be through by now
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
    page.fill("[name='each.2.max_tokens']", "5")
    send(page, prompt=LINE, max_tokens="24")
    ended(page)
    first, second, third = texts(page)
    assert first == second
    assert finishes(page)[2] == "length"
    remarks = page.locator(".choice .remark").all_text_contents()
    assert remarks == ["", "The same text as choice 0.", ""]
    assert page.locator(".choice .own").all_text_contents() == ["temperature 0", "temperature 0", "max_tokens 5"]
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


@pytest.mark.model
def test_themes(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road, color_scheme="light")
    seen = {}
    for theme in ("system", "light", "dark"):
        assert page.locator("#theme").text_content() == f"Theme: {theme}"
        seen[theme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        low = page.evaluate(CONTRAST)
        assert low == [], f"WCAG AA in {theme}"
        if theme == "dark":
            send(page, prompt=LINE, n="3", max_tokens="40")
            ended(page)
            view(page, "Probabilities")
            assert page.evaluate(CONTRAST) == []
            picture(page, "dark")
            page.reload()
            assert page.evaluate("document.documentElement.dataset.theme") == "dark", "it is kept"
        page.click("#theme")
    assert seen["system"] == seen["light"] != seen["dark"]


CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const over = (colors) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.matches("option, :disabled")) continue;
    const behind = [];
    for (let at = element; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
    const paper = light(over(behind));
    const ink = light(over([...behind, getComputedStyle(element).color]));
    const ratio = (Math.max(paper, ink) + 0.05) / (Math.min(paper, ink) + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName}.${element.className} ${ratio.toFixed(2)}`);
  }
  return poor;
}"""
"""The elements whose text is below a contrast of 4.5 (WCAG 2.2, 1.4.3), as the page looks now."""


@pytest.mark.model
def test_on_a_phone(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road, viewport=PHONE, device_scale_factor=2, has_touch=True, is_mobile=True)
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(fits)
    assert not page.is_visible("[name=temperature]"), "settings are folded"
    picture(page, "phone")
    page.locator("#controls > summary").tap()
    page.fill("[name=n]", "4")
    page.fill("[name=max_tokens]", "40")
    page.locator("#each > summary").tap()
    assert page.evaluate(fits)
    picture(page, "phone-settings", full_page=True)
    page.fill("[name=prompt]", f"{LINE} {'w' * 300}")
    page.locator("#send").tap()
    ended(page)
    assert page.evaluate(fits)
    boxes = [page.locator(".choice").nth(index).bounding_box() for index in range(4)]
    assert all(0.7 * PHONE["width"] < box["width"] < PHONE["width"] for box in boxes)
    assert boxes[0]["x"] < boxes[1]["x"] < boxes[2]["x"], "swiped through"
    page.evaluate("document.querySelector('#columns').scrollBy(300, 0)")
    view(page, "Probabilities")
    page.locator(".choice").nth(1).locator(".token").nth(2).tap()
    assert page.is_visible("#tip"), "a finger has no hover"
    box = page.locator("#tip").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]
    picture(page, "phone-answers")


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


@pytest.mark.model
def test_what_is_copied_asks_the_same(pages: Pages, engine_road: Server, tmp_path: Path) -> None:
    page = pages.open(engine_road, permissions=["clipboard-read", "clipboard-write"])
    for name, value in {"prompt": 'It\'s "here":\n$HOME `x` é', "n": "2", "seed": "3", "max_tokens": "12"}.items():
        page.fill(f"[name={name}]", value)
    page.click("#each > summary")
    page.fill("[name='each.1.temperature']", "0.1")
    expected = {"temperature": 0.7, "top_p": 0.9, "choice_params": [{}, {"temperature": 0.1}]}
    whole = asked(engine_road, page.input_value("[name=prompt]"), n=2, seed=3, max_tokens=12, **expected)
    page.click("#copy-curl")
    page.wait_for_selector("#copy-curl:has-text('Copied')")
    command = page.evaluate("navigator.clipboard.readText()")
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert said(json.loads(done.stdout)) == said(whole)
    page.click("#copy-python")
    page.wait_for_selector("#copy-python:has-text('Copied')")
    program = tmp_path / "copied.py"
    program.write_text(page.evaluate("navigator.clipboard.readText()"))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "".join(f"{index} {reason} {text} \n\n" for index, reason, text in said(whole))


@pytest.mark.model
def test_where_there_is_no_clipboard_the_text_is_shown(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road)
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.click("#copy-curl")
    assert page.input_value("#paste-text").startswith(f"curl '{engine_road.v1}/chat/completions'")
    picture(page, "paste")


@pytest.mark.model
def test_keys(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road)
    page.focus("[name=prompt]")
    page.keyboard.type("?")
    assert not page.is_visible("#keys"), "it is typed"
    page.focus("#open-history")
    page.keyboard.type("?")
    assert page.is_visible("#keys")
    picture(page, "keys")
    page.click("#keys button")
    assert not page.is_visible("#keys")
    page.focus("#send")
    page.keyboard.press("Enter")
    page.wait_for_selector("#stop:focus")
    page.keyboard.press("Enter")
    page.wait_for_selector("#send:focus")
    assert set(finishes(page)) <= {"stopped", "stop", "length"}


# ---- what goes wrong


def test_a_wrong_key(pages: Pages, logs: Path) -> None:
    with (
        scripted(Behaviour()) as upstream,
        gateway(upstream.url, "--api-key", "right", log=logs / "keyed.log") as server,
    ):
        page = pages.open(server)
        field = page.locator("#key-field")
        assert field.is_visible(), "a key is asked for when the models are not told"
        page.fill("[name=key]", "wrong")
        page.keyboard.press("Tab")
        page.wait_for_selector("#key-field .problem:has-text('No valid API key')")
        page.fill("[name=typed-model]", "fake-model")
        send(page, n="2")
        page.wait_for_selector("#failure:visible")
        assert page.locator("#failure strong").text_content() == "A valid key is needed"
        assert "invalid_api_key" in page.locator("#failure").text_content()
        assert page.get_attribute("[name=key]", "aria-invalid") == "true"
        picture(page, "wrong-key")
        page.fill("[name=key]", "right")
        page.keyboard.press("Tab")
        page.wait_for_selector("select[name=model]:visible")
        send(page)
        ended(page)
        assert not page.is_visible("#failure")
        assert len(texts(page)) == 2 and all(texts(page))
        page.reload()
        page.wait_for_selector("select[name=model]:visible")
        assert page.evaluate("JSON.stringify(localStorage).includes('right')") is False, "the key goes with the tab"


def test_the_upstream_is_down(pages: Pages, logs: Path) -> None:
    with gateway(f"http://127.0.0.1:{free_port()}/v1", log=logs / "down.log") as server:
        page = pages.open(server)
        page.fill("[name=typed-model]", "any")
        send(page, n="3")
        page.wait_for_selector("#failure:visible")
        assert page.locator("#failure strong").text_content() in ("The upstream failed", "Nothing can answer now")
        assert "upstream_unavailable" in page.locator("#failure").text_content()
        assert "request " in page.locator("#failure .facts").text_content()
        picture(page, "upstream-down")


def test_models_that_are_listed_late(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "late.log") as server:
        page = pages.open(server)
        page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": []}), times=1)
        page.reload()
        page.wait_for_selector("[name=typed-model]:visible")
        page.wait_for_selector("select[name=model]:visible")
        assert page.input_value("select[name=model]") == "fake-model"


def test_a_field_that_is_refused_says_why(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, "--max-n", "2", log=logs / "narrow.log") as server:
        page = pages.open(server)
        send(page, n="3")
        page.wait_for_selector("#failure:visible")
        assert "2" in page.locator(".field:has([name=n]) .problem").text_content()
        assert page.get_attribute("[name=n]", "aria-invalid") == "true"
        assert page.locator(".choice").count() == 0, "nothing came"
        picture(page, "refused")
        page.fill("[name=n]", "2")
        assert page.get_attribute("[name=n]", "aria-invalid") is None


def test_a_stream_that_ends_with_an_error(pages: Pages, logs: Path) -> None:
    broken = Behaviour(end_after=3, end="cut")
    with scripted(broken) as upstream, gateway(upstream.url, log=logs / "broken.log") as server:
        page = pages.open(server)
        send(page, n="2")
        page.wait_for_selector("#failure:visible")
        assert page.locator("#failure strong").text_content() == "The stream ended with an error"
        assert all(texts(page)), "what had come stays"
        assert finishes(page) == ["cut off", "cut off"]
        picture(page, "stream-error")


def test_the_gateway_dies_in_mid_stream(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour(hold_after=3)) as upstream, gateway(upstream.url, log=logs / "dies.log") as server:
        page = pages.open(server)
        send(page, n="2")
        begun(page, 2)
        server.process.kill()
        page.wait_for_selector("#failure:visible")
        assert page.locator("#failure strong").text_content() == "The answer is not complete"
        assert finishes(page) == ["cut off", "cut off"]
        send(page)
        page.wait_for_selector("#failure:has-text('cannot be reached')")
        picture(page, "gateway-gone")


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


# ---- its modules


def test_the_modules() -> None:
    scripts = [str(path) for path in sorted(SCRIPTS.glob("*.test.mjs"))]
    done = subprocess.run([needed(NODE), "--test", *scripts], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


ODD = "'\"\\\n\r\t\0\u2028 $(x) `x` é 🍎 !! %s \\\n"
BODIES: list[dict[str, Any]] = [
    {"model": "m", "messages": [{"role": "user", "content": "p"}], "n": 2},
    {
        "model": "m",
        "messages": [{"role": "user", "content": "'\"\\\n\r\t\0\u2028 $(x) `x` é 🍎 !! %s"}],
        "n": 1,
        "logprobs": True,
    },
    {"model": "it's", "messages": [], "n": 2, "temperature": 0.5, "choice_params": [{}, {"seed": -1}], "stop": None},
]


def test_what_is_copied_holds_the_request_and_no_key() -> None:
    """A shell and Python read it as they would; the server is a function that keeps what it is called with."""
    argv = [needed(NODE), str(SCRIPTS / "snippets.mjs")]
    done = subprocess.run(argv, input=json.dumps(BODIES), capture_output=True, text=True, timeout=60, check=True)
    for body, written in zip(BODIES, json.loads(done.stdout), strict=True):
        plain, keyed = words(written["curl"]), words(written["keyed_curl"])
        assert plain == [
            "curl",
            "http://h/v1/chat/completions",
            "-H",
            "content-type: application/json",
            "-d",
            plain[-1],
        ]
        assert json.loads(plain[-1]) == json.loads(keyed[-1]) == body
        assert "authorization: Bearer canary" in keyed
        for program in (written["python"], written["keyed_python"]):
            called = asking(program)
            extra = called.pop("extra_body", {})
            assert {**called, **extra} == body
        assert 'os.environ["NPROXY_API_KEY"]' in written["keyed_python"]


def words(command: str) -> list[str]:
    """What a copied command calls curl with, once a shell has read it."""
    script = f'curl() {{ printf "%s\\0" curl "$@"; }}\n{command}'
    environment = {"NPROXY_API_KEY": "canary"}
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, timeout=30, check=True, env=environment)
    return done.stdout.decode().split("\0")[:-1]


def asking(program: str) -> dict[str, Any]:
    """What a copied program asks for: its call's arguments, evaluated."""
    [call] = [
        node
        for node in ast.walk(ast.parse(program))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "create"
    ]
    return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}


# ---- servers


def asked(server: Server, prompt: str = LINE, **fields: Any) -> Any:
    """The same request as the page's, for a whole answer."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0.7,
        "top_p": 0.9,
        **fields,
    }
    answer = httpx.post(f"{server.v1}/chat/completions", json=body, timeout=60, trust_env=False)
    return answer.raise_for_status().json()


def said(answer: Any) -> list[tuple[int, str, str]]:
    return [(c["index"], c["finish_reason"], c["message"]["content"]) for c in answer["choices"]]


def gateway(upstream: str, *words: str, log: Path) -> Any:
    """`nproxy serve` in front of a scripted upstream, which has no `n`."""
    return nproxy("--upstream", upstream, "--n", "fanout", *words, log=log, ready="/health")


@contextmanager
def scripted(behaviour: Behaviour) -> Iterator[FakeUpstream]:
    """A scripted upstream on a loop of its own: the browser's calls are not asyncio's."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    upstream = FakeUpstream(behaviour)
    asyncio.run_coroutine_threadsafe(upstream.__aenter__(), loop).result(30)
    try:
        yield upstream
    finally:
        loop.call_soon_threadsafe(behaviour.go_on.set)
        asyncio.run_coroutine_threadsafe(upstream.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

"""What is copied: a request as code to paste, which a shell and Python parse, and the answers."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.upstream import Behaviour
from tests.real.processes import Server
from tests.system.browser import picture
from tests.system.playground.servers import asked, gateway, said, scripted
from tests.system.playground.window import LINE, Pages, begun, ended, send, texts
from tests.system.tools import NODE, needed


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


def test_a_request_that_is_too_long_for_an_argument_is_copied_all_the_same(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "long.log") as server:
        page = pages.open(server, permissions=["clipboard-read", "clipboard-write"])
        for prompt in ("é!'$HOME\nJSON\n" + "é " * 50_000, "x" * 130_000):
            page.locator("[name=prompt]").evaluate("(field, text) => { field.value = text }", prompt)
            page.click("#copy-curl")
            page.wait_for_selector("#copy-curl:has-text('Copied')")
            command = page.evaluate("navigator.clipboard.readText()")
            done = subprocess.run(["/bin/sh"], input=command, capture_output=True, text=True, timeout=60, check=True)
            assert len(json.loads(done.stdout)["choices"]) == 4, done.stdout
            assert upstream.calls[-1].body["messages"][-1]["content"] == prompt
            page.wait_for_selector("#copy-curl:has-text('Copy as curl')")


def test_each_copy_is_told_to_a_screen_reader(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "told.log") as server:
        page = pages.open(server, permissions=["clipboard-read", "clipboard-write"])
        page.locator("#told").evaluate(
            """(told) => {
              globalThis.heard = [];
              new MutationObserver(() => heard.push(told.textContent)).observe(told, { childList: true });
            }"""
        )
        for name in ("curl", "python"):
            page.click(f"#copy-{name}")
            page.wait_for_selector(f"#copy-{name}:has-text('Copied')")
        assert page.evaluate("heard") == ["Copied", "Copied"]


@pytest.mark.model
def test_each_answer_is_copied_by_itself_when_it_is_whole(pages: Pages, engine_road: Server) -> None:
    page = pages.open(engine_road, permissions=["clipboard-read", "clipboard-write"])
    send(page, prompt=LINE, n="2", seed="11", max_tokens="60")
    begun(page, 2)
    ended(page)
    for index, text in enumerate(texts(page)):
        page.get_by_role("button", name=f"Copy choice {index}", exact=True).click()
        page.locator(".choice").nth(index).get_by_text("Copied", exact=True).wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == text


def test_an_answer_under_way_has_no_copy_yet(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour(hold_after=2)) as upstream, gateway(upstream.url, log=logs / "whole.log") as server:
        page = pages.open(server)
        send(page, n="2")
        begun(page, 2)
        copiers = page.get_by_role("button", name="Copy choice")
        assert copiers.count() == 0, "it would move with the end of the text"
        upstream.go_on()
        ended(page)
        assert copiers.count() == 2
        picture(page, "copies")


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
    """A shell and Python parse what is copied; a function stands in for curl and keeps its arguments."""
    argv = [needed(NODE), str(Path(__file__).with_name("snippets.mjs"))]
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
    """Return the arguments with which a copied command calls curl, as a shell parses it."""
    script = f'curl() {{ printf "%s\\0" curl "$@"; }}\n{command}'
    environment = {"NPROXY_API_KEY": "canary"}
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, timeout=30, check=True, env=environment)
    return done.stdout.decode().split("\0")[:-1]


def asking(program: str) -> dict[str, Any]:
    """Return the arguments of a copied program's request, evaluated."""
    [call] = [
        node
        for node in ast.walk(ast.parse(program))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "create"
    ]
    return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}

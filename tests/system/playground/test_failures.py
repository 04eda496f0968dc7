"""Failures, and how the page reports them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.upstream import Behaviour
from tests.ports import free_port
from tests.system.browser import picture
from tests.system.playground.servers import gateway, scripted
from tests.system.playground.window import PHONE, WIDE, Pages, begun, ended, finishes, send, texts, view


def test_a_wrong_key(pages: Pages, logs: Path) -> None:
    with (
        scripted(Behaviour()) as upstream,
        gateway(upstream.url, "--api-key", "right", log=logs / "keyed.log") as server,
    ):
        page = pages.open(server)
        field = page.locator("#key-field")
        assert field.is_visible(), "a key is asked for when the models are not told"
        page.wait_for_selector("[name=key]:focus")
        assert page.text_content("#key-field .problem") == "", "nothing is wrong yet"
        page.fill("[name=prompt]", "Hello")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("[name=key]:focus:invalid")  # the browser asks for a key
        assert not page.is_visible("#failure")
        page.fill("[name=key]", "wrong")
        page.keyboard.press("Tab")
        problem = page.locator("#key-field .problem:has-text('API key is missing or invalid')")
        assert problem.text_content().endswith("invalid."), "how programs send it is of no use here"
        assert page.get_attribute("[name=typed-model]", "placeholder") == "listed once there is a key"
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


@pytest.mark.parametrize(("field", "viewport"), [("n", PHONE), ("each.1.temperature", WIDE)])
def test_send_unfolds_a_field_that_is_wrong(pages: Pages, logs: Path, field: str, viewport: dict[str, int]) -> None:
    """The browser does not submit a form while a field that it cannot show is wrong, and says nothing."""
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "folded-field.log") as server:
        page = pages.open(server, viewport=viewport)
        page.locator("details").evaluate_all("(all) => all.forEach((details) => { details.open = true })")
        page.fill(f"[name='{field}']", "99")
        page.locator("details").evaluate_all("(all) => all.forEach((details) => { details.open = false })")
        page.click("#send")
        page.wait_for_selector(f"[name='{field}']:focus:invalid")
        assert upstream.calls == []


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


def test_a_list_of_models_that_failed_is_asked_for_again(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "list.log") as server:
        page = pages.open(server)
        failed = {"error": {"message": "Later, please.", "type": "server_error", "param": None, "code": "not_ready"}}
        page.route("**/v1/models", lambda route: route.fulfill(status=503, json=failed), times=1)
        page.reload()
        page.wait_for_selector("#failure:has-text('Later, please.')")
        page.wait_for_selector("select[name=model]:visible")
        assert page.is_hidden("#failure"), "it is over"


def test_a_key_that_is_mended_takes_the_failure_away(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, "--api-key", "right", log=logs / "key.log") as server:
        page = pages.open(server)
        page.fill("[name=typed-model]", "fake-model")
        send(page, key="wrong")
        page.wait_for_selector("#failure:visible")
        page.fill("[name=key]", "right")
        page.keyboard.press("Tab")
        page.wait_for_selector("select[name=model]:visible")
        assert page.is_hidden("#failure")


def test_a_key_that_an_upstream_once_refused_is_not_required(pages: Pages, logs: Path) -> None:
    refused = Behaviour(status=401, body=b'{"error": {"message": "Not you.", "code": "invalid_api_key"}}')
    with scripted(refused) as upstream, gateway(upstream.url, log=logs / "once.log") as server:
        page = pages.open(server)
        send(page, n="2")
        page.wait_for_selector("#failure:has-text('Not you.')")
        page.wait_for_selector("[name=key]:focus")
        upstream.behaviour = Behaviour()
        send(page)
        page.wait_for_selector("#failure", state="hidden")
        ended(page)
        assert all(texts(page)) and len(texts(page)) == 2


def test_a_refusal_of_log_probabilities_points_to_what_asks_for_them(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "logprobs.log") as server:
        page = pages.open(server)
        refused = {"error": {"message": "There are none.", "type": "invalid_request_error", "param": "logprobs"}}
        page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=refused))
        send(page)
        page.wait_for_selector("#failure:visible")
        assert page.locator(".field:has([name=logprobs]) .problem").text_content() == "There are none."
        assert page.evaluate("document.activeElement.name") == "logprobs"


def test_a_field_that_is_refused_says_why(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, "--max-n", "2", log=logs / "narrow.log") as server:
        page = pages.open(server)
        page.fill("[name=n]", "17")
        page.click("#send")
        page.wait_for_selector("[name=n]:focus:invalid")
        assert "at most 16 choices side by side" in page.locator("[name=n]").evaluate("(n) => n.validationMessage")
        view(page, "Probabilities")
        send(page, n="3")
        page.wait_for_selector("#failure:visible")
        page.wait_for_selector("#legend", state="hidden")
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


def test_a_key_that_no_header_can_hold(pages: Pages, logs: Path) -> None:
    with (
        scripted(Behaviour()) as upstream,
        gateway(upstream.url, "--api-key", "right", log=logs / "unsendable.log") as server,
    ):
        page = pages.open(server)
        page.fill("[name=key]", "ключ")
        page.keyboard.press("Tab")
        page.wait_for_selector("#key-field .problem:has-text('A key has no spaces')")
        page.fill("[name=typed-model]", "fake-model")
        send(page)
        page.wait_for_selector("#failure:has-text('A key has no spaces')")
        assert "cannot be reached" not in page.locator("#failure").text_content()
        assert page.is_visible("#send")


def test_a_fault_while_an_error_is_shown_leaves_no_request_under_way(pages: Pages, logs: Path) -> None:
    with gateway(f"http://127.0.0.1:{free_port()}/v1", log=logs / "fault.log") as server:
        page = pages.open(server)
        page.fill("[name=typed-model]", "any")
        page.locator("#failure").evaluate(
            "(element) => { element.replaceChildren = () => { throw new Error('on purpose') } }"
        )
        send(page)
        page.wait_for_selector("#send:visible")
        assert page.get_attribute("#columns", "aria-busy") == "false"
        page.goto("about:blank")  # this page logs nothing more
        assert pages.wrong and all("on purpose" in one for one in pages.wrong), pages.wrong
        pages.wrong.clear()


def test_a_chunk_that_the_page_cannot_take_ends_the_wait(pages: Pages, logs: Path) -> None:
    with scripted(Behaviour()) as upstream, gateway(upstream.url, log=logs / "chunk.log") as server:
        page = pages.open(server)

        def broken(route: Any) -> None:
            answer = route.fetch()
            begin = "function takeChoice(choice, said, now) {"
            route.fulfill(response=answer, body=answer.text().replace(begin, f"{begin} throw new Error('on purpose');"))

        page.route("**/playground/run.js", broken)
        page.reload()
        page.wait_for_selector("select[name=model]:visible")
        send(page, n="2")
        page.wait_for_selector("#failure:has-text('Something that this page does not know came')")
        ended(page)
        assert (finishes(page), page.locator(".choice.live").count()) == ([], 0), "nothing seems to be under way"
        page.goto("about:blank")  # this page logs nothing more
        assert pages.wrong and all("on purpose" in one for one in pages.wrong), pages.wrong
        pages.wrong.clear()


def test_a_gateway_that_is_full_says_when_to_come_again(pages: Pages, logs: Path) -> None:
    full = Behaviour(
        status=429, body=b'{"error": {"message": "Too many.", "code": "busy"}}', headers={"retry-after": "70"}
    )
    with scripted(full) as upstream, gateway(upstream.url, log=logs / "full-upstream.log") as server:
        page = pages.open(server)
        send(page, n="2")
        page.wait_for_selector("#failure:visible")
        assert page.locator("#failure strong").text_content() == "Too much is asked for at the moment"
        assert "It may be tried again in 70 s." in page.locator("#failure").text_content()
        assert "429" in page.locator("#failure .facts").text_content()

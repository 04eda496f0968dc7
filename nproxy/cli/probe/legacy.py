"""Which prompts legacy completions accept, and whether they echo them; log probabilities at both endpoints."""

from __future__ import annotations

from nproxy.cli.probe.findings import Finding, no, unknown, yes
from nproxy.cli.probe.questions import Asking, Form, Reply
from nproxy.cli.probe.reading import ParsedReply, read
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON

PROMPTS: list[JSON] = ["One, two,", "Red, green,"]
TOKEN_IDS: list[JSON] = [100, 200, 300]
"""Ids that exist in every vocabulary."""


def logprobs(form: Form) -> Asking[Finding]:
    """Ask for log probabilities, with the fields of the dialect."""
    if form.dialect is Dialect.CHAT:
        asked = yield form.ask(logprobs=True, top_logprobs=1)
    else:
        asked = yield form.ask(logprobs=1)
    reading = read(asked)
    if reading is None:
        return unanswered(asked)
    if all(choice.logprobs for choice in reading.choices):
        return yes("every choice has them")
    return no("ignored: none came")


def prompts(form: Form) -> Asking[dict[str, Finding]]:
    """Ask with echo, with token ids, and with lists of prompts: these last, because mlx-lm's server dies of them."""
    short = form.short()
    echoed = yield short.ask(echo=True)
    tokens = yield short.ask(prompt=TOKEN_IDS)
    listed = yield from _lists(short)
    return {
        "prompt_lists": listed,
        "token_prompts": _choices(tokens, 1),
        "echo": _echo(echoed, read(echoed), form.prompt),
    }


def _lists(form: Form) -> Asking[Finding]:
    """Ask for a list of prompts, non-streamed and, if that works, as a stream: Modular's MAX then answers 500."""
    whole = yield form.ask(prompt=PROMPTS)
    if not whole.ok and not (yield form.ask()).ok:
        return no(f"it stopped answering after that: {whole.reason()}")
    found = _choices(whole, len(PROMPTS))
    if found.verdict != "yes":
        return found
    streamed = _choices((yield form.ask(prompt=PROMPTS, stream=True)), len(PROMPTS))
    return no(f"as a stream: {streamed.how}") if streamed.verdict == "no" else found


def _choices(asked: Reply, due: int) -> Finding:
    reading = read(asked)
    if reading is None:
        return unanswered(asked)
    came = len(reading.choices)
    count = f"{came} choice{'s' if came > 1 else ''} came"
    return yes(count) if came == due else no(count)


def _echo(asked: Reply, reading: ParsedReply | None, prompt: str) -> Finding:
    if reading is None:
        return unanswered(asked)
    # a tokenizer may add a space in front
    echoed = reading.texts[0].lstrip().startswith(prompt)
    return yes("the answer begins with the prompt") if echoed else no("ignored: the answer has no prompt")


def unanswered(asked: Reply) -> Finding:
    """Return the finding for an answer without choices: a refusal is a no."""
    if asked.ok:
        return unknown("the answer contains no choices")
    return no(asked.reason()) if asked.refused else unknown(asked.reason())

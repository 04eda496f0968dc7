"""What a server's streams look like, and what its token counts include."""

from __future__ import annotations

from collections.abc import Sequence

from nproxy.cli.probe.findings import Finding, no, unknown, yes
from nproxy.cli.probe.questions import Asking, Form, Reply
from nproxy.cli.probe.reading import ParsedReply, StreamLook, read
from nproxy.openai.dialect import Dialect
from nproxy.openai.usage import Usage


def stream(form: Form, width: int) -> Asking[dict[str, Finding]]:
    """Ask for a stream of `width` choices with usage; without stream_options if they are refused."""
    many = {"n": width} if width > 1 else {}
    asked = yield form.ask(stream=True, stream_options={"include_usage": True}, **many)
    found = dict[str, Finding]()
    if asked.ok:
        found["stream_options"] = yes("a request with include_usage was answered")
    else:
        plain = yield form.ask(stream=True, **many)
        refused = asked.refused and plain.ok
        found["stream_options"] = no(asked.reason()) if refused else unknown(asked.reason())
        asked = plain
    reading = read(asked)
    if width > 1:
        found["n_stream"] = _of_several(asked, reading, width)
        if reading is None:
            return {**found, **(yield from stream(form, 1))}
    if reading is None or reading.look is None:
        found["stream"] = _no_stream(asked, reading)
        return found
    found["stream"] = yes(f"{reading.look.events} events")
    return {**found, **_seen(form, reading, reading.look)}


def _of_several(asked: Reply, reading: ParsedReply | None, width: int) -> Finding:
    if reading is None:
        return no(f"n={width}: the stream held no choice" if asked.ok else f"n={width}: {asked.reason()}")
    count, unfinished = len(reading.choices), [choice for choice in reading.choices if choice.finish is None]
    if count < width:
        return no(f"n={width} gave {count} choice{'s' if count > 1 else ''}")
    if unfinished and len(unfinished) < count:
        return no(f"n={width} gave {count} choices, and a finish_reason for {count - len(unfinished)}")
    return yes(f"n={width} gave {count} choices")


def _no_stream(asked: Reply, reading: ParsedReply | None) -> Finding:
    if reading is not None:
        return no("answered in JSON form")
    if asked.ok:
        return unknown("the stream held no choice, or an error")
    return no(asked.reason()) if asked.refused else unknown(asked.reason())


def _seen(form: Form, reading: ParsedReply, look: StreamLook) -> dict[str, Finding]:
    count = len(reading.choices)
    unfinished = [index for index, choice in enumerate(reading.choices) if choice.finish is None]
    found = {
        **_usage(form, reading, look),
        "one_id": _one_id(look, count),
        "finish": no(f"missing: {unfinished}") if unfinished else yes(f"{count} of {count}"),
        "done": yes("the last event") if look.done else no("the stream just ended"),
    }
    if form.dialect is Dialect.CHAT:
        found["role_chunks"] = role_chunks(look, count)
    return found


def _one_id(look: StreamLook, count: int) -> Finding:
    if count < 2:
        return unknown("one choice only")
    return yes(f"{count} choices, one id") if len(look.ids) == 1 else no(f"{len(look.ids)} ids")


def role_chunks(look: StreamLook, count: int) -> Finding:
    """Whether every choice's role comes once, before all text, in order of index."""
    roles = [index for index, what in look.opened if what == "role"]
    silent = sorted(set(range(count)) - set(roles))
    if silent:
        return no(f"no role for {silent}")
    if len(set(roles)) < len(roles):
        return no("roles are repeated")
    texts = [position for position, (_, what) in enumerate(look.opened) if what == "text"]
    last = max(position for position, (_, what) in enumerate(look.opened) if what == "role")
    if texts and texts[0] < last:
        return no("text of one choice comes before the role of another")
    return yes(f"{count} of {count}") if roles == sorted(roles) else no(f"in the order {roles}")


def _usage(form: Form, reading: ParsedReply, look: StreamLook) -> dict[str, Finding]:
    if reading.usage is None:
        return {"stream_usage": no("no chunk carried it")}
    if look.tails and look.riders:
        once = no("it comes in chunks with choices, and again in a separate chunk")
    elif len(look.tails) == 1:
        once = yes("one separate chunk")
    elif look.tails:
        once = no(f"{len(look.tails)} chunks for {len(reading.choices)} choices")
    else:
        once = no("it comes in chunks with choices")
    return {
        "stream_usage": yes(_counted(reading.usage)),
        "stream_usage_once": once,
        "stream_usage_all_choices": counts_all([(form.tokens, reading)]),
    }


def json_usage(reading: ParsedReply | None) -> Finding:
    """Whether a JSON answer has usage."""
    if reading is None:
        return unknown("no answer")
    return no("the answer has none") if reading.usage is None else yes(_counted(reading.usage))


def _counted(usage: Usage) -> str:
    return f"{usage.prompt} prompt + {usage.completion} completion tokens"


def counts_all(answers: Sequence[tuple[int, ParsedReply]]) -> Finding:
    """Whether usage counts the tokens of all choices.

    answers: each with the maximum number of tokens of a choice. A choice that ended by length has that many, so a total
    below their sum leaves tokens out. And if the total is more than all choices but one could have, it counts all of
    them.
    """
    known = unknown("no answer of several choices")
    for tokens, reading in answers:
        several = len(reading.choices)
        if several < 2 or reading.usage is None:
            continue
        full = sum(tokens for choice in reading.choices if choice.finish == "length")
        started = sum(1 for choice in reading.choices if choice.finish != "length" and choice.text)
        counted = reading.usage.completion
        if counted < full + started:
            return no(f"{counted} tokens counted for {several} choices that had at least {full + started}")
        if counted > tokens * (several - 1):
            known = yes(f"{counted} tokens counted for {several} choices")
        elif known.verdict == "unknown":
            known = unknown(f"{counted} tokens counted for {several} choices; the choices ended too early to tell")
    return known

"""Native n: whether a server has it, how many choices one call gives, and whether greedy requests may use it."""

from __future__ import annotations

from dataclasses import dataclass, field

from nproxy.choices.remedies import named_width
from nproxy.cli.probe.findings import Finding, no, unknown, yes
from nproxy.cli.probe.questions import Asking, Form, Reply
from nproxy.cli.probe.reading import ParsedReply, read
from nproxy.openai.errors import wrap_foreign


@dataclass(slots=True)
class Width:
    """What the search found.

    widest: 1 if there is no n. limited: whether the answers showed that `widest` is the limit. readings: answers of
    several choices, each with the number of tokens that each choice could have, to check usage.
    """

    finding: Finding
    widest: int = 1
    limited: bool = False
    readings: list[tuple[int, ParsedReply]] = field(default_factory=list)


def pair(form: Form) -> Asking[Width]:
    """Ask for two choices."""
    asked = yield form.ask(n=2)
    reading = read(asked)
    if reading is None:
        if asked.refused:
            return Width(no(f"n=2 is refused: {asked.reason()}", "refused"), limited=True)
        return Width(unknown(asked.reason() if not asked.ok else "the answer contains no choices"))
    if len(reading.choices) == 1:
        return Width(no("n=2 is ignored: one choice came", "ignored"), limited=True)
    return Width(yes("n=2 gave 2 choices", 2), 2, readings=[(form.tokens, reading)])


def search(form: Form, most: int) -> Asking[Width]:
    """Double n up to `most`, with answers of one token; if that fails, find the limit."""
    width = yield from pair(form)
    short = form.short()
    while 2 <= width.widest < most:
        asking = min(2 * width.widest, most)
        asked = yield short.ask(n=asking)
        got = _taken(asked, asking, width)
        if got == asking:
            width.finding = yes(f"n={asking} gave {asking} choices", asking)
            continue
        if asked.ok:
            width.limited = True
            width.finding = yes(f"n={asking} gave {width.widest} choices", width.widest)
        elif asked.refused:
            yield from _limit(short, asked, asking, width)
        else:
            width.finding = yes(
                f"n={width.widest} gave {width.widest} choices; n={asking}: {asked.reason()}", width.widest
            )
        break
    return width


def _taken(asked: Reply, asking: int, width: Width) -> int:
    """Note how many choices came, and return their number."""
    reading = read(asked)
    if reading is None:
        return 0
    got = len(reading.choices)
    width.readings.append((1, reading))
    width.widest = max(width.widest, min(got, asking))
    return got


def _limit(short: Form, refused: Reply, asking: int, width: Width) -> Asking[None]:
    """Find the limit between what was given and what was refused: from the refusal's text, else by bisection."""
    width.limited = True
    refusal = f"n={asking} is refused: {refused.reason()}"
    message = wrap_foreign(refused.status, refused.content_type, refused.body).message
    named = named_width(message, asking)
    low = width.widest
    high = low + 1 if named == low else asking
    while high - low > 1:
        trying = named if named is not None and low < named < high else (low + high) // 2
        if _taken((yield short.ask(n=trying)), trying, width) == trying:
            low, high = trying, trying + 1 if trying == named else high
        else:
            high = trying
    width.widest = low
    width.finding = yes(f"n={low} gave {low} choices; {refusal}", low)


def greedy(form: Form) -> Asking[Finding]:
    """Find out whether two choices may be asked for at temperature 0."""
    asked = yield form.ask(n=2, temperature=0)
    reading = read(asked)
    if reading is not None:
        return yes("n=2 gave 2 choices") if len(reading.choices) > 1 else no("n=2 gave 1 choice")
    return no(f"n=2 is refused: {asked.reason()}") if asked.refused else unknown(asked.reason())

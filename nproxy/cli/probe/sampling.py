"""Whether a server samples its answers, and what seeds do to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nproxy.cli.probe.findings import Finding, no, unknown, yes
from nproxy.cli.probe.questions import Asking, Form, Reply
from nproxy.cli.probe.reading import ParsedReply, read

SPECIAL = {"generation_config": json.dumps({"do_sample": True})}
"""The field that transformers serve needs in order to sample."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was found.

    form: how to ask so that the server samples, if a way was found. singles: answers to the seed and the next one,
    asked one by one.
    """

    form: Form
    found: dict[str, Finding]
    draws: bool
    singles: Sequence[str]


def sampling(form: Form, first: Reply, seed: int) -> Asking[Drawn]:
    """Ask twice without a seed (`first` is the first answer), twice with `seed`, once with the next seed."""
    found = dict[str, Finding]()
    asked = yield from _round(form, first, seed)
    found["sampling"] = yield from _draws(form, [*asked.plain, *asked.seeded])
    if found["sampling"].verdict == "no":
        special = replace(form, extra={**form.extra, **SPECIAL})
        again = yield from _round(special, (yield special.ask()), seed)
        if _differ(special_texts := _texts([*again.plain, *again.seeded])) and len(special_texts) > 1:
            field = next(iter(SPECIAL))
            found["sampling"] = no(f"all answers are equal; they differ with {field} {SPECIAL[field]}", field)
            form, asked = special, again
    drawn = found["sampling"].verdict == "yes" or form.extra != {}
    found["seed_accepted"] = _accepted(asked.seeded)
    found["seed"] = _honoured(asked.seeded, found["seed_accepted"], drawn=drawn)
    found["fresh_seed"] = _fresh(asked.plain, drawn=drawn, fixed=_differ(_texts(asked.seeded)))
    return Drawn(form, found, drawn, _texts(asked.seeded[1:]))


@dataclass(frozen=True, slots=True)
class _Round:
    plain: Sequence[Reply]
    seeded: Sequence[Reply]


def _round(form: Form, first: Reply, seed: int) -> Asking[_Round]:
    plain = [first, (yield form.ask())]
    seeded = [(yield form.ask(seed=seed)), (yield form.ask(seed=seed))]
    if seeded[0].ok:
        seeded.append((yield form.ask(seed=seed + 1)))
    return _Round(plain, seeded)


def _draws(form: Form, replies: Sequence[Reply]) -> Asking[Finding]:
    texts = _texts(replies)
    if len(texts) < 2 or not any(texts):
        return unknown("too few answers with text")
    if _differ(texts):
        return yes("answers to the same question differ")
    greedy = _texts([(yield form.ask(temperature=0))])
    if greedy and greedy[0] != texts[0]:
        return yes("the answers are always the same, but differ from the one at temperature 0")
    return no(f"{len(texts)} answers are equal, also to the one at temperature 0")


def _accepted(seeded: Sequence[Reply]) -> Finding:
    if seeded[0].ok:
        return yes("a request with seed was answered")
    return no(seeded[0].reason()) if seeded[0].refused else unknown(seeded[0].reason())


def _honoured(seeded: Sequence[Reply], accepted: Finding, *, drawn: bool) -> Finding:
    if accepted.verdict == "no":
        return no("seed is refused")
    texts = _texts(seeded)
    if len(texts) < 3:
        return unknown("not answered each time")
    same, other = texts[0] == texts[1], texts[0] != texts[2]
    if not drawn:
        return unknown("it does not sample")
    if not same:
        return no("the same seed gave different answers")
    return (
        yes("the same seed gave the same answer, another seed a different one")
        if other
        else no("two seeds gave the same answer")
    )


def _fresh(plain: Sequence[Reply], *, drawn: bool, fixed: bool) -> Finding:
    texts = _texts(plain)
    if len(texts) < 2 or not drawn:
        return unknown("it does not sample" if len(texts) > 1 else "not answered each time")
    if texts[0] != texts[1]:
        return yes("two requests without a seed gave different answers")
    return no(
        "two requests without a seed gave the same answer" + (", although different seeds change it" if fixed else "")
    )


def per_choice(drawn: Drawn, width: int, seed: int) -> Asking[Finding]:
    """Find out whether the choices of one call with a seed differ."""
    if not drawn.draws:
        return unknown("it does not sample")
    if drawn.found["seed_accepted"].verdict == "no":
        return unknown("seed is refused")
    asked = yield drawn.form.ask(n=width, seed=seed)
    reading = read(asked)
    if reading is None or len(reading.choices) < 2 or not any(reading.texts):
        return unknown(asked.reason() if not asked.ok else "there were no two choices with text")
    texts = reading.texts
    if not _differ(texts):
        return no(f"{len(texts)} choices of one call with a seed are equal; n: fanout gives each its own")
    if len(drawn.singles) > 1 and list(texts[: len(drawn.singles)]) == list(drawn.singles):
        return yes("choice i equals the answer to one request with seed + i")
    return yes("choices of one call with a seed differ")


def _texts(replies: Sequence[Reply]) -> list[str]:
    """Return the first choice's text of each reply that is an answer."""
    readings: list[ParsedReply | None] = [read(reply) for reply in replies]
    return [reading.texts[0] for reading in readings if reading is not None]


def _differ(texts: Sequence[str]) -> bool:
    return len(set(texts)) > 1

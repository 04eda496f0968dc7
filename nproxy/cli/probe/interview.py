"""The order of the questions, from the list of models to the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nproxy.cli.model_list import models_in, no_list
from nproxy.cli.printable import printable
from nproxy.cli.probe import activity, legacy, sampling, streams, tools, width
from nproxy.cli.probe.findings import FACTS, Finding, Report, completed, no, unknown, yes
from nproxy.cli.probe.questions import Asking, Form, Get, Question, Reply
from nproxy.cli.probe.reading import read
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import wrap_foreign

SECTIONS = {Dialect.CHAT: "chat", Dialect.COMPLETIONS: "completions"}


SAYS_NOTHING = ("", "user", "organization_owner", "me")
"""Owners of models that many servers write."""


class ProbeFailed(Exception):
    """Nothing useful can be found out; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of the interview."""

    nonce: str
    """Any new word; it makes prompts unique."""
    model: str | None = None
    """The model to ask; None takes the first of the server's list."""
    tokens: int = 12
    """Maximum number of tokens of a usual answer."""
    seed: int = 11
    """The seed to ask with; the next number is used too."""
    widest: int = 128
    """Where the search for a limit of n ends."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """The list of models. owner: the owner named in the entry of the first one."""

    finding: Finding
    models: tuple[str, ...] = ()
    owner: str = ""


@dataclass(frozen=True, slots=True)
class _Opened:
    """An endpoint after the first question: how to ask it, and the reply. form: None if it does not answer."""

    finding: Finding
    form: Form | None
    reply: Reply


def conduct(url: str, interview: Asking[Report], ask: Callable[[Question], Reply]) -> Report:
    """Pass each question to `ask`, until the interview is over. Raises ProbeFailed."""
    asked = 0
    try:
        question = next(interview)
        while True:
            asked += 1
            question = interview.send(ask(question))
    except StopIteration as end:
        report: Report = end.value
        return replace(report, url=url, questions=asked)


def interview(plan: Plan) -> Asking[Report]:
    """Find out everything; raises ProbeFailed if no endpoint answers."""
    listed = _read_list((yield Get("/models")))
    model = plan.model or next(iter(listed.models), None)
    if model is None:
        raise ProbeFailed(f"there is no model to ask: {listed.finding.how.rstrip('.')}; name one with --model")
    opened = dict[Dialect, _Opened]()
    for dialect in Dialect:
        opened[dialect] = yield from _open(Form(dialect, model, plan.tokens))
    forms = {dialect: found.form for dialect, found in opened.items() if found.form is not None}
    if not forms:
        raise ProbeFailed(f"model {printable(model)} answers at no endpoint: {opened[Dialect.CHAT].finding.how}")
    found = {SECTIONS[dialect]: {"available": at.finding} for dialect, at in opened.items()}
    main, *others = forms
    form, facts = yield from _thoroughly(forms[main], opened[main].reply, plan)
    found[SECTIONS[main]] |= facts
    for other in others:
        found[SECTIONS[other]] |= yield from _briefly(replace(forms[other], extra=form.extra), opened[other].reply)
    if Dialect.CHAT in forms:
        found["chat"]["tools"] = yield from tools.must(form)
    found["server"] = {
        "model_list": listed.finding,
        "slots": (yield from activity.slots()),
        "prefix_cache": (yield from activity.prefix_cache(form, plan.nonce)),
        "cancel": (yield from activity.cancel(form)),
    }
    if "finish" in facts and facts["finish"].verdict == "yes":
        found["server"]["beside"] = yield from activity.beside(form)
    if "seed" in facts and facts["seed"].verdict == "yes":
        found["server"]["seeds_at_once"] = yield from activity.seeds_at_once(form, plan.seed)
    if not any(one.verdict == "no" for fact, one in found["server"].items() if fact in ("beside", "seeds_at_once")):
        found["server"]["at_once"] = yield from activity.at_once(form)
    if Dialect.COMPLETIONS in forms:  # last, because a server may not survive these questions
        found["completions"] |= yield from legacy.prompts(forms[Dialect.COMPLETIONS])
    name, own_engine = _called(listed, opened[main].reply)
    sections = {section: completed(section, found[section]) for section in FACTS}
    return Report("", model, listed.models, name, own_engine, sections, 0)


def _read_list(reply: Reply) -> _Listed:
    if reply.failure:
        raise ProbeFailed(reply.failure)
    if reply.status in (401, 403):
        raise ProbeFailed(f"it needs a key (--api-key): {reply.reason()}")
    if reply.status != 200:
        return _Listed(no(f"/models: {reply.reason()}"))
    listed = models_in(reply.body)
    if listed is None:
        return _Listed(no(f"it {no_list(reply.content_type)}"))
    if not listed:
        return _Listed(no("/models lists none"))
    return _Listed(yes(f"{len(listed)} listed", len(listed)), tuple(name for name, _ in listed), listed[0].owner)


def _open(form: Form) -> Asking[_Opened]:
    """Ask the first question; if `max_tokens` is refused, ask again with the newer field name."""
    reply = yield form.ask()
    if reply.refused and "max_tokens" in wrap_foreign(reply.status, reply.content_type, reply.body).message:
        form = replace(form, length_field="max_completion_tokens")
        reply = yield form.ask()
    if reply.status in (401, 403):
        raise ProbeFailed(f"it needs a key (--api-key): {reply.reason()}")
    if read(reply) is not None:
        return _Opened(yes("a question was answered"), form, reply)
    if reply.ok:
        return _Opened(no("the answer contains no choices"), None, reply)
    return _Opened(no(reply.reason()) if reply.refused else unknown(reply.reason()), None, reply)


def _thoroughly(form: Form, first: Reply, plan: Plan) -> Asking[tuple[Form, dict[str, Finding]]]:
    drawn = yield from sampling.sampling(form, first, plan.seed)
    native = yield from width.search(drawn.form, plan.widest)
    found = {**drawn.found, **(yield from _shape(drawn.form, native, first))}
    if native.widest > 1:
        found["n_greedy"] = yield from width.greedy(drawn.form)
        found["seed_per_choice"] = yield from sampling.per_choice(drawn, min(4, native.widest), plan.seed)
    return drawn.form, found


def _briefly(form: Form, first: Reply) -> Asking[dict[str, Finding]]:
    return (yield from _shape(form, (yield from width.pair(form)), first))


def _shape(form: Form, native: width.Width, first: Reply) -> Asking[dict[str, Finding]]:
    """Return what is asked of both endpoints. native: what is known of n. first: a non-streamed answer."""
    return {
        "n": native.finding,
        "usage": streams.json_usage(read(first)),
        "usage_all_choices": streams.counts_all(native.readings),
        **(yield from streams.stream(form, min(2, native.widest))),
        "logprobs": (yield from legacy.logprobs(form)),
    }


def _called(listed: _Listed, answer: Reply) -> tuple[str, bool]:
    """Return the server's name, and whether it is nproxy's own engine without a gateway in front of it."""
    if (mode := answer.headers.get("x-nproxy-mode")) is not None:
        return f"nproxy ({printable(mode, 20)})", False
    if listed.owner == "nproxy":
        return "nproxy's engine", True
    owner = "" if listed.owner in SAYS_NOTHING else listed.owner
    return printable(owner or answer.headers.get("server", ""), 40), False

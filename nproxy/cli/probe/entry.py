"""The report as an `upstreams:` entry for the settings file: valid keys only, with reasons as comments."""

from __future__ import annotations

import json
import re

from nproxy import __version__
from nproxy.cli.printable import printable
from nproxy.cli.probe.findings import FACTS, Report
from nproxy.cli.probe.table import TITLES
from nproxy.config import ENGINE_UPSTREAM, Replica

Line = tuple[str, str, str]
"""A key, its value as YAML, and a comment, which may be empty."""


def as_yaml(report: Report, replica: Replica, api_key: str | None, widest: int) -> str:
    """Return the entry. widest: where the search for n ended.

    api_key: as it was given; a reference to a key is written, the key itself never.
    """
    lines = [
        ("name", _name(replica), ""),
        ("replicas", f"[{_quoted(str(replica))}]", ""),
        _models(report),
        _api_key(api_key),
        n := _n(report, widest),
        *_usage(report),
        *_prompts(report, n),
        *_wire(report),
        *_parallel(report),
        *_seed(report),
    ]
    body = [f"{key}: {value}{f'  # {comment}' if comment else ''}" for key, value, comment in lines]
    missing = [f"    # {line}" for line in _missing(report)]
    head = f"# found by nproxy {__version__} probe, asking for {printable(report.model)}"
    return "\n".join([head, "upstreams:", f"  - {body[0]}", *(f"    {line}" for line in body[1:]), *missing])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # JSON's strings are YAML's, except for escaped surrogates


def _name(replica: Replica) -> str:
    """Make a name from the address; metrics and headers will show it."""
    where = replica.socket.stem if replica.socket is not None else replica.url.partition("://")[2].partition("/")[0]
    name = re.sub(r"[^A-Za-z0-9]+", "-", where).strip("-")[:64] or "upstream"
    return _quoted(f"{name}-1" if name == ENGINE_UPSTREAM else name)


def _models(report: Report) -> Line:
    if report.models:
        return "models", "auto", f"{len(report.models)} now"
    return "models", f"[{_quoted(report.model)}]", f"no list: {report['server', 'model_list'].how}"


def _api_key(given: str | None) -> Line:
    if given is None:
        return "api_key", "none", "the server answered without a key"
    if re.fullmatch(r"\$\{\w+\}", given) or given.startswith("file:"):
        return "api_key", _quoted(given), ""
    return "api_key", "passthrough", "or the key that was used, as ${NAME} or file:PATH"


def _n(report: Report, widest: int) -> Line:
    there = _answering(report)
    found = [report[section, "n"] for section in there]
    for section, n in zip(there, found, strict=True):
        if n.verdict == "no":
            return "n", "fanout", f"{TITLES[section]}: {n.how}"
    if untold := [n for n in found if n.verdict == "unknown"]:
        return "n", "auto", untold[0].how
    if broken := _lacking(report, "n_stream"):
        return "n", "fanout", f"{TITLES[broken]}: in streams {report[broken, 'n_stream'].how}"
    if equal := _lacking(report, "seed_per_choice"):
        return "n", "fanout", f"{TITLES[equal]}: choices of one call with a seed are equal"
    if (uncounted := _lacking(report, "usage_all_choices")) and _streams_count_less(report):
        return "n", "fanout", f"{TITLES[uncounted]}: usage of n choices counts only one choice, also in streams"
    width = found[0].value
    if isinstance(width, int) and width < widest:
        return "n", f"{{native_up_to: {width}}}", found[0].how
    return "n", "native", found[0].how


def _usage(report: Report) -> list[Line]:
    """If non-streamed answers count only one choice but streams count all, answers are asked for as streams."""
    uncounted = _lacking(report, "usage_all_choices")
    if uncounted is None or _streams_count_less(report):
        return []
    return [("usage", "stream", f"{TITLES[uncounted]}: {report[uncounted, 'usage_all_choices'].how}")]


def _prompts(report: Report, n: Line) -> list[Line]:
    """If a server fails on a list of prompts, or answers only the first, each call gets one prompt.

    `auto` assumes this of every server without `n`, so a server without `n` that does accept lists gets `list`.
    """
    listed = report["completions", "prompt_lists"]
    setting = "one" if listed.verdict == "no" else "list" if listed.verdict == "yes" and n[1] == "fanout" else None
    return [] if setting is None else [("prompts", setting, f"{TITLES['completions']}: {listed.how}")]


def _streams_count_less(report: Report) -> bool:
    return any(_lacking(report, fact) for fact in ("stream_usage", "stream_usage_all_choices"))


def _answering(report: Report) -> list[str]:
    return [section for section in ("chat", "completions") if report[section, "available"].verdict == "yes"]


def _lacking(report: Report, fact: str) -> str | None:
    """Return the first endpoint that answers but does not have the fact; None if there is none."""
    return next((section for section in _answering(report) if report[section, fact].verdict == "no"), None)


def _wire(report: Report) -> list[Line]:
    return [("wire", "exact", "nproxy's own engine")] if report.own_engine else []


def _parallel(report: Report) -> list[Line]:
    for alone in (report["server", "beside"], report["server", "seeds_at_once"]):
        if alone.verdict == "no":
            return [("parallel", "1", alone.how)]
    room, slots = report["server", "at_once"], report["server", "slots"]
    if room.verdict == "no":
        return [("parallel", str(room.value), room.how)]
    return [("parallel", str(slots.value), slots.how)] if slots.verdict == "yes" else []


def _seed(report: Report) -> list[Line]:
    for section in ("chat", "completions"):
        if report[section, "seed_accepted"].verdict == "no":
            return [("seed", "omit", report[section, "seed_accepted"].how)]
        if report[section, "seed"].verdict == "yes":
            return [("seed", "send", report[section, "seed"].how)]
    return []


def _missing(report: Report) -> list[str]:
    """Return a line for each fact that the server does not have."""
    return [
        f"{TITLES[section]}: {title}: no ({report[section, name].how})"
        for section, facts in FACTS.items()
        for name, title in facts.items()
        if report[section, name].verdict == "no" and name not in ("n", "seed_accepted", "model_list")
    ]

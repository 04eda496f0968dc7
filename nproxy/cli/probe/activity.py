"""Facts that show beside the answers: slots, cached prefixes, effects of a concurrent request or of a disconnect."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from nproxy.choices.failure_table import NO_CAPACITY
from nproxy.cli.probe.findings import Finding, no, unknown, yes
from nproxy.cli.probe.questions import LONG, Asking, Beside, Form, Get, Leave, Reply, Together
from nproxy.cli.probe.reading import read

GAUGES = (
    "nproxy_inflight_legs",
    'nproxy_engine_sequences{state="running"}',
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
)
"""Metrics that tell how much a server is working on; the first one that exists is used."""
HITS = ("vllm:prefix_cache_hits_total",)
"""Counters of prompt tokens that were found in a cache."""
HITS_PAUSE = 0.25
PAUSES = (0.25, 0.25, 0.5, 1.0, 1.0)
"""Seconds between checks after the disconnect. A server that stops generating has stopped by the last one."""
LEFT_TOKENS = 1024
AT_ONCE = 32
"""Number of concurrent calls: as many as n = 32 makes at a server without `n`."""
BACK_PAUSE = 1.0
"""Seconds after which a server has released the capacity of the calls that it has answered."""
BESIDE_TOKENS = 64
"""Tokens of a stream that still runs when another request arrives."""

_SAMPLE = re.compile(r"^([^\s{]+)(\{[^}]*\})?\s+(\S+)")


def slots() -> Asking[Finding]:
    """Read llama.cpp's `/slots`, or the count in its `/props`."""
    listed = (yield Get("/slots", root=True)).json()
    if isinstance(listed, list) and listed and all(isinstance(slot, dict) and "id" in slot for slot in listed):
        return yes(f"/slots lists {len(listed)}", len(listed))
    props = (yield Get("/props", root=True)).json()
    if isinstance(props, dict) and isinstance(total := props.get("total_slots"), int) and total > 0:
        return yes(f"/props says {total}", total)
    return unknown("neither /slots nor /props reports it")


def prefix_cache(form: Form, nonce: str) -> Asking[Finding]:
    """Ask the same long prompt twice; only the server's own figures count. nonce: makes the prompt new."""
    long = replace(form.short(), prompt=f"{nonce}: {'The quick brown fox jumps over the lazy dog. ' * 15}What jumps?")
    first = yield long.ask()
    before = in_metrics((yield Get("/metrics", root=True)), HITS)
    second = yield long.ask()
    after = None if before is None else in_metrics((yield Get("/metrics", root=True, after=HITS_PAUSE)), HITS)
    reading = read(second)
    usage = None if reading is None else reading.usage
    if usage is not None and usage.prompt_details is not None and "cached_tokens" in usage.prompt_details:
        cached = usage.prompt_details["cached_tokens"]
        how = f"cached_tokens says {cached} of {usage.prompt} the second time"
        return yes(how) if cached else no(f"{how}; longer prompts may be cached")
    if before is not None and after is not None:
        how = f"/metrics counts {after - before:g} cached tokens the second time"
        return yes(how) if after > before else no(f"{how}; longer prompts may be cached")
    return unknown(f"no cached_tokens in usage; first time {first.seconds:.2f} s, then {second.seconds:.2f} s")


def beside(form: Form) -> Asking[Finding]:
    """Ask something else while a stream runs: llama-cpp-python then ends the stream as if it were complete."""
    long = replace(form, prompt=LONG, tokens=BESIDE_TOKENS)
    reading = read(streamed := (yield Beside(long.ask(stream=True), form.short().ask())))
    if reading is None:
        return unknown("the stream held no choice, or an error") if streamed.ok else unknown(streamed.reason())
    if all(choice.finish is not None for choice in reading.choices):
        return yes("the stream was complete")
    return no("a second request cut the stream short")


def seeds_at_once(form: Form, seed: int) -> Asking[Finding]:
    """Ask with two seeds at the same time: mlx-vlm samples everything that it computes together with one of them."""
    both = yield Together((form.ask(seed=seed), form.ask(seed=seed + 1)))
    readings = [read(one) for one in (both, *both.others)]
    texts = [reading.texts[0] for reading in readings if reading is not None and reading.texts[0]]
    if len(texts) < 2:
        return unknown("not both requests were answered")
    if texts[0] == texts[1]:
        return no("two concurrent seeds gave the same answer")
    return yes("two concurrent seeds gave different answers")


def at_once(form: Form) -> Asking[Finding]:
    """Make many calls at once, then as many as were answered, and so on until the server has capacity for all.

    The first calls ask for one token, because a server may answer them one after the other.
    """
    asking, refused, after = AT_ONCE, "", 0.0
    asked = form.short()
    while asking:
        first = yield Together([asked.ask()] * asking, after)
        replies = (first, *first.others)
        full = [reply for reply in replies if reply.status in NO_CAPACITY]
        if failed := next((reply for reply in replies if not reply.ok and reply not in full), None):
            return unknown(failed.reason())
        if not full:
            return no(refused, asking) if refused else yes(f"{asking} concurrent calls were answered", asking)
        refused = refused or f"{len(full)} of {asking} concurrent calls were refused: {full[0].reason()}"
        asking, asked, after = asking - len(full), form, BACK_PAUSE
    return unknown(refused)


def cancel(form: Form) -> Asking[Finding]:
    """Disconnect from a long stream early, and see in the server's own figures whether it goes on working."""
    long = replace(form, prompt=LONG, tokens=LEFT_TOKENS)
    for path, running in (("/metrics", running_in_metrics), ("/slots", running_in_slots)):
        before = running((yield Get(path, root=True)))
        if before is None:
            continue
        if before:
            return unknown(f"{path} showed other requests running")
        during = running((yield Leave(long.ask(stream=True), Get(path, root=True))))
        if not during:
            return unknown(f"{path} did not show the stream while it ran")
        return (yield from _until_idle(path, running))
    return unknown("neither /metrics nor /slots reports running requests")


def _until_idle(path: str, running: Callable[[Reply], float | None]) -> Asking[Finding]:
    waited = 0.0
    for pause in PAUSES:
        waited += pause
        if running((yield Get(path, root=True, after=pause))) == 0:
            return yes(f"{path} shows it idle {waited:g} s after the disconnect")
    return no(f"{path} shows it still working {waited:g} s after the disconnect")


def running_in_metrics(reply: Reply) -> float | None:
    """Return how much the server is working on; None if its metrics do not tell."""
    return in_metrics(reply, GAUGES)


def in_metrics(reply: Reply, names: Sequence[str]) -> float | None:
    """Return the sum over the series of the first of these metrics that exists; None if none does."""
    if reply.status != 200:
        return None
    sums = dict[str, float]()
    for line in reply.body.decode("utf-8", "replace").splitlines():
        if (sample := _SAMPLE.match(line)) is None:
            continue
        name, labels, text = sample[1], sample[2] or "", sample[3]
        for one in names:
            wanted, _, label = one.partition("{")
            if name == wanted and label.rstrip("}") in labels:
                sums[one] = sums.get(one, 0.0) + _number(text)
    return next((sums[one] for one in names if one in sums), None)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def running_in_slots(reply: Reply) -> float | None:
    """Return how many of llama.cpp's slots are busy; None if the answer is not a list of slots."""
    listed = reply.json() if reply.status == 200 else None
    if not isinstance(listed, list) or not listed:
        return None
    busy = [slot.get("is_processing") for slot in listed if isinstance(slot, dict)]
    return sum(map(bool, busy)) if all(isinstance(one, bool) for one in busy) and busy else None

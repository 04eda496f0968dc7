"""traceparent and tracestate, read by the rules of W3C Trace Context."""

from __future__ import annotations

import pytest

from nproxy.telemetry.trace_context import TraceContext, read, unrecorded

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_good_one() -> None:
    context = read([GOOD], ["a=b"])
    assert context == TraceContext(TRACE, SPAN, 1, "a=b", GOOD)
    assert context.sampled
    assert context.headers == {"traceparent": GOOD, "tracestate": "a=b"}


@pytest.mark.parametrize(
    ("parent", "flags", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-00", 0, False),
        (f"00-{TRACE}-{SPAN}-02", 2, False),  # level 2: the trace id is random
        (f"00-{TRACE}-{SPAN}-03", 3, True),
        (f"00-{TRACE}-{SPAN}-ff", 3, True),  # flags that nobody knows yet
        (f"01-{TRACE}-{SPAN}-01", 1, True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", 1, True),
    ],
)
def test_flags_and_later_versions(parent: str, flags: int, sampled: bool) -> None:
    context = read([parent], [])
    assert context is not None
    assert (context.trace_id, context.span_id, context.flags, context.sampled) == (TRACE, SPAN, flags, sampled)
    assert context.headers == {"traceparent": parent}, "as it came"


MALFORMED = {
    "nothing": "",
    "no parts": "00",
    "capitals": f"00-{TRACE.upper()}-{SPAN}-01",
    "another version 00": f"{GOOD}-more",
    "a dash behind version 00": f"{GOOD}-",
    "text behind a later version": f"01-{TRACE}-{SPAN}-01.more",
    "version ff": f"ff-{TRACE}-{SPAN}-01",
    "no trace": f"00-{'0' * 32}-{SPAN}-01",
    "no span": f"00-{TRACE}-{'0' * 16}-01",
    "a short trace id": f"00-{TRACE[1:]}-{SPAN}-01",
    "a long span id": f"00-{TRACE}-{SPAN}0-01",
    "short flags": f"00-{TRACE}-{SPAN}-1",
    "no hex": f"00-{TRACE}-{SPAN[1:]}g-01",
    "a blank": f" {GOOD}",
    "a line end": f"{GOOD}\n",
}


@pytest.mark.parametrize("parent", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_malformed_is_none(parent: str) -> None:
    assert read([parent], ["a=b"]) is None


def test_there_is_one_or_none() -> None:
    assert read([], ["a=b"]) is None
    assert read([GOOD, GOOD], []) is None


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        ([], ""),
        ([""], ""),
        (["a=b,c=d"], "a=b,c=d"),
        (["a=b", "c=d"], "a=b,c=d"),
        (["a=b ,\tc=d,,"], "a=b ,\tc=d,,"),  # blanks and empty members are let be
        (["tenant@system=x", "0a_-*/=y z"], "tenant@system=x,0a_-*/=y z"),
        ([",".join(f"k{number}=v" for number in range(32))], ",".join(f"k{number}=v" for number in range(32))),
        ([",".join(f"k{number}=v" for number in range(33))], ""),
        (["a=b,a=c"], ""),
        (["A=b"], ""),
        (["a"], ""),
        (["a="], ""),
        (["a=b=c"], ""),
        (["a=\u00e9"], ""),
        ([f"{'a' * 257}=b"], ""),
        ([f"a={'b' * 257}"], ""),
        ([f"{'a' * 256}={'b' * 256}"], f"{'a' * 256}={'b' * 256}"),
    ],
)
def test_the_state_is_whole_or_left_out(lines: list[str], state: str) -> None:
    context = read([GOOD], lines)
    assert context is not None
    assert context.state == state
    assert ("tracestate" in context.headers) == bool(state)


def test_a_new_trace_that_nobody_records() -> None:
    one, two = unrecorded(), unrecorded()
    assert one.trace_id != two.trace_id and not one.sampled
    assert read([one.headers["traceparent"]], []) == TraceContext(
        one.trace_id, one.span_id, 2, given=one.headers["traceparent"]
    )

"""The words between parent and workers: every message survives the way, whatever else comes is no message."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.upstreams.health_checks import CheckResult
from nproxy.upstreams.overload.peer_workers import PeerNews
from nproxy.workers.frames import LENGTH_BYTES, LONGEST_FRAME, Frames, FrameTooLong, frame
from nproxy.workers.messages import (
    Admission,
    Beat,
    Checked,
    Crowding,
    Drain,
    Leave,
    LegsOfLeaving,
    Members,
    Message,
    NotAMessage,
    Query,
    Ready,
    Reconfigure,
    Result,
    Start,
    Taught,
    decode,
    encode,
)

SECRET = "sk-canary"
SETTINGS = {
    "data": {"upstreams": [{"name": "a", "api_key": SECRET, "parallel": 10**30}]},
    "folder": "/etc/nproxy",
    "secrets": {"${KEY}": SECRET},
}
LESSON = Taught("u", "m", ("NativeWidth", {"asked": 4, "got": 2}))

HELD = LegsOfLeaving("w6", {"u": {"http://h/v1": 2}})

ALL: list[Message] = [
    Start(
        protocol=1,
        index=0,
        workers=2,
        name="w7",
        pseudonym="nproxy-1",
        settings=SETTINGS,
        log_level="info",
        engine_socket="/tmp/engine.sock",
        members={"u": []},
        lessons=(LESSON,),
        predecessors=(HELD,),
    ),
    Reconfigure(SETTINGS),
    Members({"u": [["http://h/v1", 1.5]]}),
    Drain("handover", 600.0),
    LESSON,
    Checked(CheckResult("u", "http://h/v1", None, 3.0)),
    Crowding(PeerNews("u", "m", "a caller", "room", "w7", "http://h/v1")),
    Admission(b'["leave", "w1-1", 7]'),
    Ready("1.0"),
    Leave(),
    HELD,
    Beat("a report"),
    Query(3, "metrics"),
    Result(3, None),
]


def test_every_message_survives_the_way() -> None:
    assert {type(message) for message in ALL} == set(get_args(Message))
    for message in ALL:
        assert decode(encode(message)) == message


def test_only_messages_of_admission_control_are_arrays() -> None:
    for message in ALL:
        assert encode(message).startswith(b"[") == isinstance(message, Admission)


def test_settings_are_in_no_repr() -> None:
    assert all(SECRET not in repr(message) for message in ALL)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"{}", b'{"kind":"nope"}', b'{"kind":"query","number":"x","what":"metrics"}', b"\xff\x00"],
)
def test_other_bytes_are_no_message_and_are_not_repeated(data: bytes) -> None:
    with pytest.raises(NotAMessage) as raised:
        decode(data)
    assert str(raised.value) == "" and raised.value.__cause__ is None and raised.value.__suppress_context__


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(0, 400)))
def test_frames_come_out_however_the_bytes_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, payloads))
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    frames = Frames()
    out = [payload for start, end in itertools.pairwise(places) for payload in frames.feed(stream[start:end])]
    assert out == payloads


def test_a_frame_that_is_too_long_is_refused_by_its_first_bytes() -> None:
    with pytest.raises(FrameTooLong):
        list(Frames().feed((LONGEST_FRAME + 1).to_bytes(LENGTH_BYTES, "big")))

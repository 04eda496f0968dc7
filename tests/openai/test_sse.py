"""Server-sent events from bytes: whole, byte by byte, in any split, with what real and odd servers send."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nproxy.openai.sse import BETWEEN, SSEDecoder, SSEError, SSEEvent
from tests.transcripts.recorded import load

PROPERTY = settings(derandomize=True, deadline=None, max_examples=300)


def decode(*segments: bytes, max_event: int = 1 << 24) -> list[SSEEvent]:
    decoder = SSEDecoder(max_event)
    events = [event for segment in segments for event in decoder.feed(segment)]
    return events + decoder.close()


def bytewise(stream: bytes) -> list[SSEEvent]:
    return decode(*(stream[i : i + 1] for i in range(len(stream))))


ONE_EVENT = [
    pytest.param(b": comment\ndata: x\n\n", id="P1_comment_line"),
    pytest.param(b": ping\n\n:\n\ndata: x\n\n", id="P1_comment_block"),
    pytest.param(b"data: x\r\n\r\n", id="P2_crlf"),
    pytest.param(b"data: x\r\r", id="P2_lone_cr"),
    pytest.param(b"data: x\r\n\n", id="P2_mixed_1"),
    pytest.param(b"data: x\n\r\n", id="P2_mixed_2"),
    pytest.param(b"data: x\n\r", id="P2_mixed_3"),
    pytest.param(b"\xef\xbb\xbfdata: x\n\n", id="P4_bom"),
    pytest.param(b"data:x\n\n", id="P7_no_space"),
    pytest.param(b"id: 1\nretry: 5\ndata: x\n\n", id="P8_id_and_retry"),
    pytest.param(b"event: lonely\n\nretry: 1\n\ndata: x\n\n", id="P8_fields_without_data"),
    pytest.param(b"data: x\n", id="P9_no_blank_line"),
    pytest.param(b"data: x", id="P9_no_line_end"),
    pytest.param(b"data: x\r", id="P9_cr_only"),
    pytest.param(b"\n\n\ndata: x\n\n\n\n", id="blank_lines_around"),
    pytest.param(b"unknown: y\ndata: x\nnocolon\n\n", id="unknown_fields"),
    pytest.param(b"data\ndata:\n\ndata: x\n\n", id="line_feed_only"),
]


@pytest.mark.parametrize("stream", ONE_EVENT)
def test_P_one_event_whole_and_bytewise(stream: bytes) -> None:
    expected = [SSEEvent(b"x")]
    if stream.startswith(b"data\ndata:"):
        expected = [SSEEvent(b"\n"), SSEEvent(b"x")]
    assert decode(stream) == expected
    assert bytewise(stream) == expected


def test_P2_a_lone_cr_ends_its_line_at_once_and_swallows_one_lf() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: x\r") == []
    assert decoder.feed(b"\r") == [SSEEvent(b"x")]  # not delayed until the next byte is seen
    assert decoder.feed(b"\ndata: y\n\n") == [SSEEvent(b"y")]
    # Only one LF belongs to the CR: the second one is a blank line.
    assert decode(b"data: x\r", b"\n", b"\n", b"data: y\n\n") == [SSEEvent(b"x"), SSEEvent(b"y")]


def test_P3_lines_of_data_are_joined() -> None:
    assert decode(b"data: {\ndata:  1\ndata\ndata: }\n\n") == [SSEEvent(b"{\n 1\n\n}")]


def test_P4_only_the_first_bom_is_dropped() -> None:
    bom = b"\xef\xbb\xbf"
    assert bytewise(bom + b"data: " + bom + b"\n\n" + bom + b"data: y\n\ndata: z\n\n") == [
        SSEEvent(bom),
        SSEEvent(b"z"),
    ]


def test_P5_a_character_split_over_segments() -> None:
    stream = "data: 日本\n\n".encode()
    for cut in range(len(stream)):
        assert decode(stream[:cut], stream[cut:]) == [SSEEvent("日本".encode())]


def test_P7_one_space_is_dropped_and_no_more() -> None:
    assert [decode(b"data:" + spaces + b"x\n\n") for spaces in (b"", b" ", b"  ")] == [
        [SSEEvent(b"x")],
        [SSEEvent(b"x")],
        [SSEEvent(b" x")],
    ]


def test_P8_the_event_name_is_kept_for_its_own_event_only() -> None:
    assert decode(b"event: error\ndata: 1\n\ndata: 2\n\n") == [SSEEvent(b"1", "error"), SSEEvent(b"2")]


def test_P9_close_gives_nothing_twice() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: x\n") == []
    assert decoder.close() == [SSEEvent(b"x")]
    assert decoder.close() == []


def test_P11_several_events_in_one_segment_and_a_rest() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: 1\n\ndata: 2\n\ndata: 3\n") == [SSEEvent(b"1"), SSEEvent(b"2")]
    assert decoder.feed(b"\ndata: 4\n\n") == [SSEEvent(b"3"), SSEEvent(b"4")]


def test_P_empty_data_is_no_event() -> None:
    assert decode(b"data: 1\n\ndata: \n\ndata:\n\ndata: 2\n\n") == [SSEEvent(b"1"), SSEEvent(b"2")]
    assert decode(b"data: 1\n\ndata: \n\ndata: 2\n\n") == [SSEEvent(b"1"), SSEEvent(b"2")]


def test_R5_a_space_before_the_blank_line_stays_in_the_data() -> None:
    assert decode(b'data: {"a":1} \n\ndata: [DONE] \n\n') == [SSEEvent(b'{"a":1} '), SSEEvent(b"[DONE] ")]


class TestLimit:
    def test_an_event_of_exactly_the_limit_passes(self) -> None:
        stream = b"data: " + b"x" * 94 + b"\n\n"
        assert (
            decode(stream, max_event=100)
            == decode(*[bytes([b]) for b in stream], max_event=100)
            == [SSEEvent(b"x" * 94)]
        )

    @pytest.mark.parametrize("end", [b"\n\n", b"\n", b""])
    def test_one_byte_more_is_refused(self, end: bytes) -> None:
        stream = b"data: " + b"x" * 95 + end
        with pytest.raises(SSEError):
            decode(stream, max_event=100)
        with pytest.raises(SSEError):
            decode(*[bytes([b]) for b in stream], max_event=100)

    def test_without_another_limit_it_is_16_MiB(self) -> None:
        event = b"data: " + b"x" * (16 * 2**20 - 6)
        decoder = SSEDecoder()
        assert len(decoder.feed(event + b"\n\n")) == 1
        with pytest.raises(SSEError):
            decoder.feed(event + b"x\n\n")

    def test_events_before_the_long_one_are_given_first(self) -> None:
        decoder = SSEDecoder(10)
        assert decoder.feed(b"data: 1\n\ndata: 23456789\n\ndata: 3\n\n") == [SSEEvent(b"1")]
        with pytest.raises(SSEError):
            decoder.feed(b"data: 4\n\n")
        with pytest.raises(SSEError):
            decoder.close()

    def test_an_endless_line_is_refused_before_it_is_held(self) -> None:
        decoder = SSEDecoder(1000)
        with pytest.raises(SSEError):
            for _ in range(1001):
                decoder.feed(b"xx")

    def test_a_large_event_in_small_segments_takes_linear_time(self) -> None:
        stream = b"data: " + b"x" * 600_000 + b"\n\n"
        small = [stream[i : i + 7] for i in range(0, len(stream), 7)]  # quadratic work would take minutes
        assert decode(*small) == [SSEEvent(b"x" * 600_000)]


lines = st.one_of(
    st.sampled_from(
        [b"data: x", b"data:y", b"data:  z", b"data", b"event: error", b"id: 1", b": c", b"", b"", b"junk"]
    ),
    st.binary(max_size=6).filter(lambda line: b"\n" not in line and b"\r" not in line),
)
line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
streams = st.builds(
    lambda bom, parts: bom + b"".join(line + end for line, end in parts),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.tuples(lines, line_ends), max_size=14),
)


@PROPERTY
@given(streams, st.data())
def test_P6_any_split_gives_the_same_events(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    segments = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decode(*segments) == decode(stream) == bytewise(stream) == by_the_letter(stream)


@PROPERTY
@given(streams, st.integers(4, 12), st.data())
def test_P6_any_split_refuses_the_same_streams(stream: bytes, limit: int, data: st.DataObject) -> None:
    def outcome(*segments: bytes) -> tuple[list[SSEEvent], bool]:
        decoder, events = SSEDecoder(limit), []
        try:
            for segment in segments:
                events += decoder.feed(segment)
            events += decoder.close()
        except SSEError:
            return events, False
        return events, True

    cut = data.draw(st.integers(0, len(stream)))
    assert outcome(stream) == outcome(stream[:cut], stream[cut:]) == outcome(*(bytes([b]) for b in stream))


def by_the_letter(stream: bytes) -> list[SSEEvent]:
    """The standard's algorithm, line by line, over the whole stream; a last block counts without its blank line."""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events, data, name = list[SSEEvent](), list[bytes](), ""
    for line in [*text.split(b"\n"), b""]:
        if line == b"":
            if b"\n".join(data):
                events.append(SSEEvent(b"\n".join(data), name))
            data, name = [], ""
        elif b":" in line:
            field, value = line.split(b":", 1)
            value = value[1:] if value[:1] == b" " else value
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value.decode("utf-8", "replace")
        elif line == b"data":
            data.append(b"")
        elif line == b"event":
            name = ""
    return events


@pytest.mark.parametrize("server", ["vllm", "llamacpp"])
@pytest.mark.parametrize("name", ["n2_stream_usage", "n2_logprobs_stream", "cmpl_n2_stream"])
def test_recorded_streams_whole_and_bytewise(server: str, name: str) -> None:
    stream = load(server, name).body
    events = decode(stream)
    assert [event.data for event in events] == [line[6:] for line in stream.splitlines() if line]
    assert events[-1].data == b"[DONE]"
    assert bytewise(stream) == events


def test_P15_llamacpps_error_field_is_an_error() -> None:
    said = b'data: {}\n\nerror: {"message":"full"}\n\n'
    assert SSEDecoder().feed(said) == [SSEEvent(b"{}"), SSEEvent(b'{"message":"full"}', "error")]


def test_P15_an_error_field_that_says_nothing_is_an_unknown_field() -> None:
    assert decode(b"data: x\nerror\n\ndata: y\nerror:\n\n") == [SSEEvent(b"x"), SSEEvent(b"y")]


def test_P1_a_segment_that_is_one_event_without_data_gives_none() -> None:
    assert SSEDecoder().feed(b"data: x\n\n") == [SSEEvent(b"x")]
    assert SSEDecoder().feed(b"data: \n\n") == []
    assert SSEDecoder().feed(b"data: \n\ndata: \n\n") == []


USUAL = b"data: x\n\ndata: y\n\n"


def begun(*segments: bytes, max_event: int = 1 << 24) -> SSEDecoder:
    """A decoder in mid-stream."""
    decoder = SSEDecoder(max_event)
    for segment in (b"data: first\n\n", *segments):
        decoder.feed(segment)
    return decoder


def starting(first: bytes) -> SSEDecoder:
    """A decoder that has seen the first bytes of a stream."""
    decoder = SSEDecoder()
    assert decoder.feed(first) == []
    return decoder


def test_usual_events_stay_together() -> None:
    assert begun().usual(b"data: one\n\n") == (b"one", 1)
    assert begun().usual(USUAL) == (b"x\n\ndata: y", 2)
    assert SSEDecoder().usual(USUAL) == (b"x\n\ndata: y", 2)
    assert begun().usual(USUAL + b"data: z z \n\n") == (b"x\n\ndata: y\n\ndata: z z ", 3)


@pytest.mark.parametrize(
    "segment",
    [
        b"",
        b"data: ",
        b"\n\n",
        b"data: \n\n",
        b"data: x\n\ndata: y\n",
        b"data: x\n\ndata: y",
        b"data: x\n\ndata: \n\n",
        b"data: \n\ndata: x\n\n",
        b"data: x\n\ndata: \n\ndata: y\n\n",
        b"data: x\n\ndata:y\n\n",
        b"data: x\ndata: y\n\ndata: z\n\n",
        b"event: e\ndata: x\n\ndata: y\n\n",
        b"data: x\n\nevent: e\ndata: y\n\n",
        b"data: x\n\n: comment\n\ndata: y\n\n",
        b"data: x\n\n\ndata: y\n\n",
        b"data: x\r\n\r\ndata: y\n\n",
        b"data: x\rdata: z\n\ndata: y\n\n",
        b"data: x\n\ndata: y\n\n\n",
    ],
)
def test_what_is_not_usual_is_left_to_feed(segment: bytes) -> None:
    assert begun().usual(segment) is None


@pytest.mark.parametrize(
    "decoder",
    [
        pytest.param(begun(b"data: x"), id="in_mid_event"),
        pytest.param(begun(b"data: x\r\r"), id="behind_a_cr"),
        pytest.param(begun(max_event=17), id="over_the_limit"),
        pytest.param(begun(b"data: x\n\ndata: " + b"y" * 20 + b"\n\n", max_event=20), id="behind_a_long_one"),
        pytest.param(starting(b"\xef"), id="in_mid_bom"),
        pytest.param(starting(b"\xef\xbb"), id="before_the_end_of_a_bom"),
    ],
)
def test_nothing_is_usual_where_what_came_before_matters(decoder: SSEDecoder) -> None:
    assert decoder.usual(USUAL) is None


def test_P4_no_bom_is_dropped_behind_usual_events() -> None:
    decoder = SSEDecoder()
    assert decoder.usual(USUAL) is not None
    assert decoder.feed(b"\xef\xbb\xbfdata: no field\n\ndata: z\n\n") == [SSEEvent(b"z")]


lines = st.sampled_from([b"data: x", b"data: y", b"data: ", b"data:z", b": c", b"event: e", b"", b"\r", b"data"])


@PROPERTY
@given(st.lists(st.lists(lines, max_size=8).map(b"\n".join), max_size=6))
def test_together_or_apart_the_same_events(segments: list[bytes]) -> None:
    decoder, came = SSEDecoder(), list[SSEEvent]()
    for segment in segments:
        together = decoder.usual(segment)
        if together is None:
            came += decoder.feed(segment)
        else:
            apart = [SSEEvent(data) for data in together[0].split(BETWEEN)]
            assert len(apart) == together[1]
            came += apart
    assert came + decoder.close() == decode(*segments)

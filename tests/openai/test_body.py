"""A request's body: what is refused, what stays exact, and what upstream calls are spliced from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nproxy.openai import body as bodies
from nproxy.openai.body import Body, Encoded, Spliced, Values
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON, PATIENT, without_escaped_quotes
from tests.openai.spliced import held

PROPERTY = settings(derandomize=True, deadline=None, max_examples=300)


def refusal(raw: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        Body.parse(raw)
    error = caught.value
    assert (error.status, error.type, error.param) == (400, "invalid_request_error", None)
    assert json.loads(error.envelope())["error"]["message"] == error.message
    return error


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b"}",
        b'{"a"',
        b'{"a":',
        b'{"a":1',
        b'{"a":1,',
        b'{"a":1,}',
        b'{"a" 1}',
        b'{"a":1 "b":2}',
        b"{a:1}",
        b"{'a':1}",
        b"{1:1}",
        b'{"a":1}}',
        b'["a":1}',
        b'{"a":1} x',
        b'{"a":01}',
        b'{"a":+1}',
        b'{"a":.5}',
        b'{"a":tru}',
        b'{"a":"\n"}',
        b'{"a":"\\x"}',
        b'{"a":[1,]}',
        b'{"a":"\\',
        b"\x00",
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":1}\x00',
        b"\xa0{}",
        b'{"a":' + b"[" * 1000,
    ],
)
def test_A12_not_json(raw: bytes) -> None:
    refusal(raw)


@pytest.mark.parametrize("raw", [b"[]", b"1", b'"x"', b"null", b"true", b" [{}] "])
def test_A12_root_is_not_an_object(raw: bytes) -> None:
    assert "object" in refusal(raw).message


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1" + b"0" * 400 + b".0"])
def test_A12_no_json_number(number: bytes) -> None:
    refusal(b'{"a":' + number + b"}")
    refusal(b'{"a":[{"b":' + number + b"}]}")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_A12_only_utf8(encoding: str) -> None:
    refusal('{"a":"é"}'.encode(encoding))


def test_A12_integers_of_thousands_of_digits() -> None:
    refusal(b'{"seed":' + b"9" * 5000 + b"}")
    assert Body.parse(b'{"seed":' + b"9" * 4000 + b"}").fields["seed"] == int("9" * 4000)


@pytest.mark.parametrize("escape", [r"\ud800", r"\uDFFF", r"x\udc00\ud800", r"\\\ud83d", r"\ud83d\\ude00", r"\ud83dx"])
def test_A12_lone_surrogates(escape: str) -> None:
    refusal(b'{"a":"%s"}' % escape.encode())
    refusal(b'{"%s":1}' % escape.encode())
    refusal(b'{"a":[{"b":"%s"}]}' % escape.encode())
    refusal(b'{"a":"%s","a":1}' % escape.encode())


@pytest.mark.parametrize(
    "escape",
    [r"\ud83d\ude00", r"\\ud800", r"\\\\ud800", r"\u00e9", r"\\\ud83d\ude00", r"\\ud800 \ud83d\ude00"],
)
def test_A12_whole_surrogate_pairs_and_escaped_backslashes_pass(escape: str) -> None:
    raw = b'{"a":"%s"}' % escape.encode()
    assert Body.parse(raw).fields == json.loads(raw)


def inside(raw: bytes, left: int) -> bytes:
    """Put a body into objects, so that so many of the 64 levels are left for it."""
    return b'{"a":' * (64 - left) + raw + b"}" * (64 - left)


class TestDepth:
    def test_A12_the_limit_itself_passes(self) -> None:
        raw = b'{"a":' + b"[" * 63 + b"]" * 63 + b"}"
        assert Body.parse(raw).raw == raw
        assert "64" in refusal(b'{"a":' + b"[" * 64 + b"]" * 64 + b"}").message

    def test_A12_objects_and_arrays_both_count(self) -> None:
        raw = b'{"a":[' * 3 + b"1" + b"]}" * 3
        refusal(inside(raw, 5))
        assert Body.parse(inside(raw, 6)).fields["a"]

    @pytest.mark.parametrize("text", ["[[[[[[", '\\"[[[[[[', "\\\\", "]]]]]]", '\\\\\\"{{{{{{', "{[" * 100])
    def test_A12_brackets_in_strings_do_not_count(self, text: str) -> None:
        raw = b'{"%s":["%s",{"b":"%s"}],"c":[]}' % ((text.encode(),) * 3)
        assert Body.parse(inside(raw, 3)).fields == json.loads(inside(raw, 3))
        refusal(inside(raw, 2))

    @pytest.mark.parametrize(
        "raw",
        [
            b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
            b'{"a":' + b"[" * 100_000,
            b"[" * 100_000,
            b'{"a":' + b'[{"b":' * 50_000,
            b'{"a":' + b"[" * 100_000 + b"}" * 100_000 + b"}",
        ],
        ids=["arrays", "objects", "unclosed", "no_object", "mixed_unclosed", "mismatched"],
    )
    def test_A12_bottomless_nesting_is_a_clean_refusal(self, raw: bytes) -> None:
        refusal(raw)

    def test_many_shallow_brackets_pass(self) -> None:
        raw = json.dumps({"a": [[i, {"b": []}] for i in range(10_000)]}).encode()
        assert Body.parse(inside(raw, 5)).fields == json.loads(inside(raw, 5))
        refusal(inside(raw, 4))


def test_a_refusal_quotes_nothing_of_the_body() -> None:
    for raw in (b'{"secret-key":"secret" "x"}', b"secret", b'{"a":"\\ud800 secret"}', b'{"a":secret}'):
        assert "secret" not in refusal(raw).message
    assert "secret" not in repr(Body.parse(b'{"a":"secret"}'))


def test_untouched_bytes_stay_exact() -> None:
    text = ' {"x" : 1.50e+01,\t"n":2 ,\n"y":"\\u00e9é", "big":123456789012345678901234567890 , "z" : [ 1 , 2 ] } \n'
    raw = text.encode()
    body = Body.parse(raw)
    assert bytes(body.splice({})) == raw
    assert bytes(body.splice({}, ["absent"])) == raw
    spliced = body.splice({"seed": 7}, ["n"])
    assert bytes(spliced) == (
        '{"x" : 1.50e+01,"y":"\\u00e9é","big":123456789012345678901234567890,"z" : [ 1 , 2 ],"seed":7}'.encode()
    )
    assert len(spliced) == len(bytes(spliced))


def test_a_repeated_key_takes_its_last_value_and_only_that_is_sent() -> None:
    body = Body.parse(b'{"n":1,"m":"\xc3\xa9","n":1000,"o":{"n":3}}')
    assert body.fields["n"] == 1000
    assert body.raw == '{"m":"é","n":1000,"o":{"n":3}}'.encode()
    assert bytes(body.splice({"m": 1})) == b'{"n":1000,"o":{"n":3},"m":1}'
    # An escaped spelling of a key is that key.
    assert Body.parse(b'{"n":1,"\\u006e":2}').fields == {"n": 2}
    assert bytes(Body.parse(b'{"n":1,"\\u006e":2,"a":0}').splice({"n": 3})) == b'{"a":0,"n":3}'


@pytest.mark.parametrize("key", ["", "k", "k" * 64, "k" * 65, "k" * 5000, "é", r"a\nb", r"q\"", r"\u00e9" * 30])
@pytest.mark.parametrize("blank", ["", " ", "\r\n\t"])
def test_a_key_is_read_however_long_it_is_and_whatever_stands_around_it(key: str, blank: str) -> None:
    text = blank.join(["", "{", '"a"', ":", "1", ",", f'"{key}"', ":", "[2]", ",", '"z"', ":", "3", "}", ""])
    body = Body.parse(text.encode())
    assert body.fields == json.loads(text)
    name = json.loads(f'"{key}"')
    assert json.loads(bytes(body.splice({}, [name]))) == {"a": 1, "z": 3}
    assert json.loads(bytes(body.splice({}, ["a"]))) == {name: [2], "z": 3}


def test_legs_that_touch_the_same_keys_share_one_head() -> None:
    body = Body.parse(json.dumps({"model": "m", "n": 128, "messages": ["x" * 100_000]}).encode())
    legs = [body.splice({"seed": seed}, ["n"]) for seed in range(128)]
    assert held(legs) < 100_100 + 128 * 20
    assert bytes(body.splice({"seed": 1})).endswith(b',"seed":1}')  # from another head
    assert bytes(body.splice({}, ["n"])) == legs[0].parts[0] + b"}"


def test_values_that_are_encoded_once_are_shared_too() -> None:
    body = Body.parse(b'{"model":"m","n":128}')
    stop: list[JSON] = ["x" * 100_000, "\u00e9"]
    long: JSON = {"stop": stop}

    def leg(seed: int) -> Spliced:
        values: Values = {"seed": seed, "own": Encoded((body.once("own", lambda: long, open=2), b',"y"]}')), "z": None}
        return body.splice(values, ["n"])

    legs = [leg(seed) for seed in range(128)]
    assert held(legs) < 100_100 + 128 * 60
    expected = {"model": "m", "seed": 7, "own": {"stop": [*stop, "y"]}, "z": None}
    assert json.loads(bytes(legs[7])) == expected and len(legs[7]) == len(bytes(legs[7]))


@pytest.mark.parametrize(
    ("raw", "fields", "drop", "expected"),
    [
        (b"{}", {}, [], b"{}"),
        (b" { } ", {"a": 1}, [], b'{"a":1}'),
        (b'{"a":1}', {}, ["a"], b"{}"),
        (b'{"a":1}', {"a": 2}, [], b'{"a":2}'),
        (b'{"a":1}', {"a": 2}, ["a"], b'{"a":2}'),
        (b'{"a":1,"b":2}', {"c": "\u00e9", "a": 1 << 70}, ["b"], '{"c":"é","a":1180591620717411303424}'.encode()),
    ],
)
def test_splice_at_the_edges(raw: bytes, fields: dict[str, Any], drop: list[str], expected: bytes) -> None:
    assert bytes(Body.parse(raw).splice(fields, drop)) == expected


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(["n", "seed", "é", "", '"', "\\", "日本"]) | text
objects = st.dictionaries(keys, values, max_size=6)


@PROPERTY
@given(
    objects,
    st.dictionaries(keys, values, max_size=3),
    st.lists(keys, max_size=3),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.sampled_from([",", ", "]),
)
def test_splice_equals_editing_the_dict(
    sent: dict[str, Any], fields: dict[str, Any], drop: list[str], ascii_only: bool, indent: int | None, comma: str
) -> None:
    separators = (comma, comma.replace(",", ":"))
    body = Body.parse(json.dumps(sent, ensure_ascii=ascii_only, indent=indent, separators=separators).encode())
    assert body.fields == sent
    expected = {key: value for key, value in sent.items() if key not in drop} | fields
    assert json.loads(bytes(body.splice(fields, drop))) == expected
    assert json.loads(bytes(body.splice(fields, drop))) == expected  # from the kept head


@PROPERTY
@given(st.binary(max_size=40) | st.text(st.sampled_from('{}[]":,\\ntrue1e9-. ud83'), max_size=40).map(str.encode))
@example(b'{"a": [1, -2.5, "\\u00e9"], "b": {"c": null}}')
def test_parse_accepts_what_json_accepts_and_raises_nothing_else(raw: bytes) -> None:
    try:
        expected = json.loads(raw.decode("utf-8"), parse_constant=lambda _: 1 / 0)
        json.dumps(expected, allow_nan=False, ensure_ascii=False).encode("utf-8")
        valid = isinstance(expected, dict)
    except (ValueError, ZeroDivisionError):
        valid = False
    if valid:
        assert Body.parse(raw).fields == expected
    else:
        refusal(raw)


# Long bodies


@pytest.mark.parametrize(
    ("most", "unit", "name"),
    [
        ("MOST_CONTAINERS", b"[]", "arrays and objects"),
        ("MOST_CONTAINERS", b"{}", "arrays and objects"),
        ("MOST_STRINGS", b'""', "strings"),
        ("MOST_VALUES", b"1", "values"),
    ],
)
def test_more_parts_than_are_worth_parsing(monkeypatch: pytest.MonkeyPatch, most: str, unit: bytes, name: str) -> None:
    monkeypatch.setattr(bodies, most, 9)
    monkeypatch.setattr(bodies, "_NEVER_TOO_MUCH", 9)
    monkeypatch.setattr(bodies, "LONG", 0)
    monkeypatch.setattr(bodies, "_FEW_STRINGS", 9)
    monkeypatch.setattr(bodies, "_LONGEST_OF_NUMBERS", 0)
    for count in (7, 8, 9, 10):
        raw = b'{"a":[%b],"b":"[[[,,,\\",{{"}' % b",".join([unit] * count)
        size = {"MOST_CONTAINERS": count + 2, "MOST_STRINGS": count + 3, "MOST_VALUES": count}[most]
        if size > 9:
            assert refusal(raw).message.endswith(f"it contains more than 9 {name}.")
        else:
            assert Body.parse(raw).fields == json.loads(raw)


@pytest.mark.parametrize(("digits", "quickly"), [("%d", True), ("%d.5", True), (" %d", False), ('"%d"', False)])
def test_token_ids_of_a_long_body_are_read_at_once(monkeypatch: pytest.MonkeyPatch, digits: str, quickly: bool) -> None:
    raw = b'{"model":"m","input":[%b]}' % ",".join(digits % place for place in range(60_000)).encode()
    assert bodies.LONG < len(raw) < 1 << 20
    wanted = json.loads(raw)
    assert Body.parse(raw).fields == wanted
    monkeypatch.setattr(bodies, "patient_value_at", None)
    if quickly:
        assert Body.parse(raw).fields == wanted
    else:
        with pytest.raises(TypeError):
            Body.parse(raw)


def test_no_limit_of_parts_is_exceeded_by_what_is_read_at_once() -> None:
    assert bodies._LONGEST_OF_NUMBERS <= bodies.MOST_VALUES


def test_more_containers_than_are_worth_parsing_in_few_bytes() -> None:
    most = b'{"a":[%b]}' % b",".join([b"[]"] * (bodies.MOST_CONTAINERS - 2))
    assert len(most) < bodies.LONG
    assert len(Body.parse(most).fields["a"]) == bodies.MOST_CONTAINERS - 2  # type: ignore[arg-type]
    assert refusal(most.replace(b"]]", b"],{}]")).message.endswith("arrays and objects.")


def test_a_long_body_is_read_by_a_decoder_that_gives_other_threads_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PATIENT.parse_int is not int, "which holds them up for all of a list"
    monkeypatch.setattr(bodies, "LONG", 8)
    negating: Any = json.JSONDecoder(parse_int=lambda digits: -int(digits))
    monkeypatch.setattr(bodies, "patient_value_at", negating.scan_once)
    assert Body.parse(b'{"a":1}').fields == {"a": 1}
    assert Body.parse(b'{"a":12}').fields == {"a": -12}


def outcome(raw: bytes) -> object:
    try:
        parsed = Body.parse(raw)
    except ApiError as error:
        return error.envelope()
    return parsed.raw, parsed.fields, parsed.splice({"n": 1}), parsed.splice({"absent": 1}), parsed.splice({}, ["a"])


def outcome_with_care(raw: bytes) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "LONG", -1)
        return outcome(raw)


@given(
    st.text(alphabet='{}[]",:\\ u019tnaN-.eé', max_size=60),
    st.integers(0, 3),
    st.sampled_from(["", '"n":7,', '"a":8,', '"n" :7,"\\u006e":[{}],']),
)
@PROPERTY
def test_bodies_are_read_alike_by_either_parser(text: str, nest: int, others: str) -> None:
    raw = (f'{{{others}"a":' * nest + text + "}" * nest).encode()
    assert repr(outcome(raw)) == repr(outcome_with_care(raw))


@given(objects)
@PROPERTY
def test_bodies_as_clients_write_them_are_read_alike_by_either_parser(sent: dict[str, Any]) -> None:
    raw = json.dumps(sent, ensure_ascii=False, separators=(",", ":")).encode()
    assert repr(outcome(raw)) == repr(outcome_with_care(raw))


@given(
    st.lists(st.sampled_from([r"\ud800", r"\uDFFF", r"\\ud800", r"\n", "a", r"\ud83d\ude00"]), max_size=12),
    st.integers(1, 20),
)
@PROPERTY
def test_half_surrogates_are_found_wherever_a_long_text_is_parted(parts: list[str], step: int) -> None:
    text = "".join(parts)
    lone = any("\ud800" <= char <= "\udfff" for char in json.loads(f'"{text}"'))
    unescaped = without_escaped_quotes(text.encode())
    if lone:
        with pytest.raises(ApiError):
            bodies._refuse_lone_surrogates(unescaped, step)
    else:
        bodies._refuse_lone_surrogates(unescaped, step)

"""What an answer must match: a client's fields become one text, which is compiled by the server and in the core.

The text is llguidance's: a JSON list of grammars in its Lark dialect, of which the first is the answer's and may refer
to the others as `@name`. One extension: an entry may hold "gbnf" in place of "lark_grammar"; it is turned into Lark
when it is compiled, which is elsewhere.

A rule is a piece of Lark that may be used inside a grammar; `text_rule`, `json_rule` and others make some.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.grammar import MOST_BYTES
from engine.server.asking.schema_annotations import without_annotations
from engine.server.asking.schema_numbers import inexact
from engine.server.asking.schema_strictness import closed
from nproxy.openai.body import LONG
from nproxy.openai.errors import invalid_request, shorten
from nproxy.openai.jsonvalue import JSON, has_lone_surrogate, loads, without_escaped_quotes
from nproxy.openai.refusals import empty_array, missing, wrong_type

# At most once between two parts of a JSON text: a space, or a line break and an indent. Without a bound a
# small model may write spaces until its tokens are used up.
_WHITESPACE = r"[ ]|\n[ ]{0,24}|\n\t{0,8}"
_OPTIONS = "x-guidance"  # a schema's key for llguidance itself; "lenient" there would ignore keywords
_MOST_CHOICES = 1024
_GBNF_RULE = re.compile(r"^[ \t]*[A-Za-z0-9_-]+[ \t]*::=", re.MULTILINE)
_IGNORED_ATTRIBUTES = re.compile(r"\[[^\[\]\"]*\b(temperature|stop)\s*=")


@dataclass(frozen=True, slots=True)
class Structure:
    """grammar: what every choice must match (see above). field: the request's field that asks for it."""

    grammar: str
    field: str


# Rules and grammars


def text_rule(text: str) -> str:
    """Return the rule of exactly this text. The library reads no bare U+007F, which JSON does not escape."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")


def token_rule(token: int) -> str:
    """Return the rule of one token, by its id, which is the way to refer to a special token."""
    return f"<[{token}]>"


def regex_rule(pattern: str) -> str:
    """Return the rule of a regular expression (Rust's syntax, matched as a whole; no look-around)."""
    return f"/{_escaped(pattern)}/"


def json_rule(schema: JSON, where: str) -> str:
    """Return the rule of the JSON texts that a schema accepts, with bounded whitespace inside and none around.

    Objects have no further properties; see `closed`. Raises ApiError 400 naming `where` for what is no schema at all.
    Keywords that cannot be enforced are refused when the grammar is compiled; those that JSON Schema does not know are
    annotations, as it says.
    """
    schema = {} if schema is True else closed(without_annotations(schema))
    if not isinstance(schema, dict):
        raise wrong_type(where, "a JSON schema", schema)
    if (number := inexact(schema)) is not None:
        message = f"The schema contains {shorten(str(number))}: integers beyond 2**53 cannot be enforced exactly."
        raise invalid_request(message, param=where, code="unsupported_parameter")
    if _OPTIONS in schema:
        raise invalid_request(f"'{_OPTIONS}' may not be set in a schema.", param=where, code="unsupported_parameter")
    return "%json " + json.dumps({**schema, _OPTIONS: {"whitespace_pattern": _WHITESPACE}}, ensure_ascii=False)


def any_rule(rules: Sequence[str]) -> str:
    """Return the rule of what one of these rules accepts."""
    return f"({' | '.join(rules)})"


def free_text_to(name: str, marker: str | int) -> str:
    """Return the line that defines rule `name`: any text up to the first `marker`, and the marker, a text
    or a token's id.
    """
    if isinstance(marker, int):
        return f"{name}: /(?s:.*)/ {token_rule(marker)}"
    return f"{name}[lazy]: /(?s:.*)/ {text_rule(marker)}"


def grammar_of(start: str, *definitions: str) -> str:
    """Return a grammar that begins with the rule `start`; definitions: lines of Lark that it uses."""
    return _listed([{"lark_grammar": "\n".join([f"start: {start}", *definitions])}])


def _listed(grammars: Sequence[Mapping[str, str]]) -> str:
    return json.dumps({"grammars": grammars}, ensure_ascii=False)


def _escaped(pattern: str) -> str:
    """Return a pattern that can be written between slashes: without bare slashes and line breaks."""
    parts = re.findall(r"\\.|[^\\]|\\$", pattern, re.DOTALL)
    return "".join([_ESCAPES.get(part, part) for part in parts])


_ESCAPES = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\\\n": r"\n", "\\\r": r"\r"}


# What clients send


def read_structure(fields: Mapping[str, JSON]) -> Structure | None:
    """Return what the request's answers must match; None if it does not say.

    Several fields may ask for the same structure: some clients send it under the names of two versions of a server.
    Raises ApiError 400 naming the field at fault: a malformed one, or one that asks for something else.
    """
    found: list[Structure] = []
    for name, read in _READERS.items():
        value = fields.get(name)
        if value is not None and (grammar := read(value, name)) is not None:
            found.append(Structure(grammar, name))
    for other in found[1:]:
        if other.grammar != found[0].grammar:
            names = f"'{found[0].field}' and '{other.field}'"
            raise invalid_request(f"{names} both constrain the answer; use one of them.", param=other.field)
    return found[0] if found else None


def _response_format(value: JSON, where: str) -> str | None:
    """OpenAI's three kinds; llama.cpp's schema inside json_object is accepted as well."""
    form = _object(value, where)
    match kind := form.get("type"):
        case "text":
            _only(form, {"type"}, where)
            return None
        case "json_object":
            _only(form, {"type", "schema"}, where)
            schema = form.get("schema")
            return _json_object(True, where) if schema is None else _json(schema, f"{where}.schema")
        case "json_schema":
            _only(form, {"type", "json_schema"}, where)
            return _named_schema(form.get("json_schema"), f"{where}.json_schema")
        case str():
            raise invalid_request(
                f"'{where}.type' must be 'text', 'json_object' or 'json_schema'.",
                param=f"{where}.type",
                code="invalid_value",
            )
        case None:
            raise missing(f"{where}.type")
        case _:
            raise wrong_type(f"{where}.type", "a string", kind)


def _named_schema(value: JSON, where: str) -> str:
    """OpenAI's envelope of a schema. The schema is enforced with `strict` and without: there is no looser way here."""
    if value is None:
        raise missing(where)
    form = _object(value, where)
    _only(form, {"name", "description", "schema", "strict"}, where)
    for member, kind, words in (
        ("name", str, "a string"),
        ("description", str, "a string"),
        ("strict", bool, "a boolean"),
    ):
        given = form.get(member)
        if given is not None and not isinstance(given, kind):
            raise wrong_type(f"{where}.{member}", words, given)
    if form.get("schema") is None:
        raise missing(f"{where}.schema")
    return _json(form["schema"], f"{where}.schema")


def _structured_outputs(value: JSON, where: str) -> str:
    """vLLM's object: exactly one of its kinds."""
    form = {name: given for name, given in _object(value, where).items() if given is not None and given is not False}
    _only(form, set(_KINDS), where)
    if len(form) != 1:
        raise invalid_request(f"'{where}' must have exactly one of: {', '.join(sorted(_KINDS))}.", param=where)
    ((name, given),) = form.items()
    return _KINDS[name](given, f"{where}.{name}")


def _json(value: JSON, where: str) -> str:
    """A schema, or its text."""
    if isinstance(value, str):
        raw = value.encode()
        if len(raw) > MOST_BYTES:
            raise invalid_request(f"'{where}' is longer than {MOST_BYTES} bytes.", param=where)
        try:
            value = loads(raw)
        except ValueError as error:
            raise invalid_request(f"'{where}' is not valid JSON: {error}", param=where) from error
        if has_lone_surrogate(without_escaped_quotes(raw), LONG):
            raise invalid_request(f"'{where}' contains half of a surrogate pair.", param=where)
    return grammar_of(json_rule(value, where))


def _json_object(value: JSON, where: str) -> str:
    if value is not True:
        raise wrong_type(where, "a boolean", value)
    return grammar_of(json_rule({"type": "object"}, where))


def _regex(value: JSON, where: str) -> str:
    return grammar_of(regex_rule(_text(value, where)))


def _choice(value: JSON, where: str) -> str:
    if not isinstance(value, list):
        raise wrong_type(where, "an array of strings", value)
    if not value:
        raise empty_array(where)
    if len(value) > _MOST_CHOICES:
        raise invalid_request(f"'{where}' may have at most {_MOST_CHOICES} strings.", param=where)
    return grammar_of(any_rule([text_rule(_text(item, f"{where}.{i}")) for i, item in enumerate(value)]))


def _grammar(value: JSON, where: str) -> str:
    """llama.cpp's GBNF, or llguidance's Lark; a line that begins a rule with `::=` distinguishes them."""
    text = _text(value, where)
    if _GBNF_RULE.search(text):
        return _listed([{"gbnf": text}])
    if found := _IGNORED_ATTRIBUTES.search(text):
        raise invalid_request(
            f"'{found[1]}=' is not supported in a grammar.", param=where, code="unsupported_parameter"
        )
    return _listed([{"lark_grammar": text}])


def _object(value: JSON, where: str) -> Mapping[str, JSON]:
    if not isinstance(value, dict):
        raise wrong_type(where, "an object", value)
    return value


def _only(form: Mapping[str, JSON], known: set[str], where: str) -> None:
    for name, value in form.items():
        if value is not None and name not in known:
            raise invalid_request(
                f"Unrecognized request argument: '{where}.{name}'.", param=where, code="unknown_parameter"
            )


def _text(value: JSON, where: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(where, "a string", value)
    return value


_Reader = Callable[[JSON, str], str | None]

_KINDS: Mapping[str, Callable[[JSON, str], str]] = {
    "json": _json,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}

# OpenAI's field, then vLLM's, its older ones, llama.cpp's and SGLang's.
_READERS: Mapping[str, _Reader] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": _json,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "json_schema": _json,
    "grammar": _grammar,
    "regex": _regex,
    "ebnf": _grammar,
}
FIELDS = frozenset(_READERS)
"""The fields of a request that are read here."""

"""Continuing: a choice that was cut goes on in another call, whose prompt ends with what the choice has said.

Only text can be continued: no reasoning, no tool calls, no prompt of token ids, and no output that must follow a
grammar or schema, which the server would begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Literal, cast

from nproxy.choices.leg import Leg, Prefix
from nproxy.choices.leg_output import Choice, LegOutput
from nproxy.choices.plan import top_up
from nproxy.choices.records import light
from nproxy.openai.body import Body, Encoded, Values
from nproxy.openai.choice_params import TOKEN_LIMITS, superseded
from nproxy.openai.chunks import UpstreamChoice
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON, dumps, loads
from nproxy.openai.requests import CompletionRequest, Request
from nproxy.openai.usage import Usage

ChatContinues = Literal["no", "flag", "trailing"]
"""How a server continues the last assistant message: not at all; if `continue_final_message` says so; always."""

_FORMS = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "json_schema",
    "regex",
    "ebnf",
)


class Script:
    """The record of one choice as text: see SentRecord. more: something other than text was sent, too."""

    __slots__ = ("_key", "_raw", "more", "pieces")

    def __init__(self, dialect: Dialect) -> None:
        self.more = False
        self.pieces = 0  # entries of log probabilities if they came, else chunks with text
        self._key = "content" if dialect is Dialect.CHAT else "text"
        self._raw = bytearray()  # escaped, as in JSON

    def __bool__(self) -> bool:
        return self.more or bool(self._raw)

    @property
    def text(self) -> str:
        """The whole text."""
        text: str = loads(b'"' + self._raw + b'"')
        return text

    def hear(self, key: str) -> Callable[[bytes], None]:
        """Like SentRecord.hear."""
        return self._hear if key == self._key else self._hear_more

    def note(self, piece: UpstreamChoice) -> None:
        """Like SentRecord.note."""
        text = piece.delta.get(self._key)
        if isinstance(text, str) and text:
            self._raw += dumps(text)[1:-1]
            self.pieces += _entries(piece.logprobs) or 1
        self.more |= any(not light(value) for key, value in piece.delta.items() if key != self._key)
        self.more |= not isinstance(text, str) and not light(text)

    def again(self) -> None:
        """Like SentRecord.again: nothing is repeated, the answer is continued."""

    def pieces_behind(self, prompt: str) -> int:
        """Return how many pieces are the choice's own. prompt: the text that it may begin with."""
        return self.pieces

    def _hear(self, escaped: bytes) -> None:
        self._raw += escaped
        self.pieces += 1

    def _hear_more(self, escaped: bytes) -> None:
        self.more = True


class EchoScript(Script):
    """The record of a choice of a legacy completion that begins with its prompt, whose pieces are not the choice's."""

    __slots__ = ("_ends", "_length")

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._length = 0  # characters so far
        self._ends: list[int] = []  # where each piece ends

    def note(self, piece: UpstreamChoice) -> None:
        """Like SentRecord.note."""
        super().note(piece)
        text = piece.delta.get(self._key)
        if not isinstance(text, str) or not text:
            return
        tokens = piece.logprobs.get("tokens") if isinstance(piece.logprobs, dict) else None
        parts = [str(token) for token in tokens] if isinstance(tokens, list) and tokens else [text]
        self._ends += accumulate(map(len, parts[1:]), initial=self._length + len(parts[0]))
        self._length += len(text)

    def pieces_behind(self, prompt: str) -> int:
        """Return how many pieces end behind the prompt, with which the text begins."""
        return sum(end > len(prompt) for end in self._ends)

    def _hear(self, escaped: bytes) -> None:
        super()._hear(escaped)
        self._length += len(loads(b'"' + escaped + b'"'))
        self._ends.append(self._length)


def _entries(logprobs: JSON) -> int:
    if not isinstance(logprobs, dict):
        return 0
    lists = [value for key in ("content", "tokens") if isinstance(value := logprobs.get(key), list)]
    return max(map(len, lists), default=0)


def continuing(request: Request, cut: LegOutput, n: int, way: ChatContinues) -> list[Leg] | None:
    """Return legs that bring what a leg did not finish: one for each choice that has begun, and legs for the others.

    None if some choice cannot be continued. n: choices per prompt. The caller numbers and seeds the legs.
    """
    leg, legs = cut.leg, list[Leg]()
    for choice in cut.unfinished:
        if not choice.sent:
            continue
        prefix = _prefix(request, cut, choice, n, way)
        prompt = choice.index // n if request.prompts > 1 else None
        one = replace(leg, offset=choice.index % n, width=1, prompt=prompt, prefix=prefix)
        if prefix is None or continued(request, one, prefix) is None:
            return None
        legs.append(one)
    others = [choice.index for choice in cut.unfinished if not choice.sent]
    return legs + top_up(leg, others, n, request.prompts, leg.width)


def _prefix(request: Request, cut: LegOutput, choice: Choice, n: int, way: ChatContinues) -> Prefix | None:
    script = choice.sent
    if not isinstance(script, Script) or script.more:
        return None
    usage = cut.usage_of(choice)
    if usage is not None:
        before = 0 if cut.leg.prefix is None else cut.leg.prefix.tokens
        return Prefix(script.text, before + usage.completion, way == "flag")
    prompt = request.prompt[choice.index // n] if isinstance(request, CompletionRequest) else ""
    return Prefix(script.text, script.pieces_behind(prompt if isinstance(prompt, str) else ""), way == "flag")


def continued(request: Request, leg: Leg, prefix: Prefix) -> Values | None:
    """Return the fields by which a leg's call continues from a prefix; None if they cannot express that."""
    own = {} if request.choice_params is None else request.choice_params[leg.offset]
    asked = {**request.body.fields, **dict.fromkeys(superseded(own)), **own}
    if any(asked.get(name) is not None for name in _FORMS) or not _free(asked.get("response_format")):
        return None
    put: Values = {}
    for name in (*TOKEN_LIMITS, "min_tokens"):
        limit = asked.get(name)
        if not isinstance(limit, int) or limit < 0:
            continue
        put[name] = left = limit - prefix.tokens
        if name == "min_tokens":
            put[name] = max(0, left)
        elif left < 1:
            return None  # it was at its limit, and it is not known how it ended
    if isinstance(request, CompletionRequest):
        goes_on = _prompt(request, leg, prefix)
    else:
        goes_on = _messages(request.body, asked, prefix)
    return None if goes_on is None else put | goes_on


def _free(form: JSON) -> bool:
    return form is None or (isinstance(form, dict) and form.get("type") == "text")


def encoded_prompt(request: CompletionRequest, place: int, more: str = "") -> Encoded:
    """Return one prompt, of which calls share what is long. more: what follows its text."""
    prompt = request.prompt[place]
    if not isinstance(prompt, str):
        return Encoded((request.body.once(("prompt", place), lambda: [*prompt]),))
    return Encoded((request.body.once(("prompt", place), lambda: prompt, open=1), dumps(more)[1:]))


def _prompt(request: CompletionRequest, leg: Leg, prefix: Prefix) -> Values | None:
    place = leg.prompt or 0
    prompt = request.prompt[place]
    if not isinstance(prompt, str):
        return None
    if not request.echo:
        return {"prompt": encoded_prompt(request, place, prefix.text)}
    return {"prompt": prefix.text, "echo": False} if prefix.text.startswith(prompt) else None


def _messages(body: Body, asked: Mapping[str, JSON], prefix: Prefix) -> Values | None:
    """Return the messages with the prefix at their end: as a new message, or appended to one that the client began."""
    messages = cast(list[dict[str, JSON]], asked["messages"])  # objects, and at least one: the request was validated
    put: Values = {"continue_final_message": True, "add_generation_prompt": False} if prefix.flag else {}
    last = messages[-1]
    if last.get("role") != "assistant" or (prefix.flag and asked.get("continue_final_message") is not True):
        begun = body.once("messages", lambda: asked["messages"], open=1)
        own = dumps({"role": "assistant", "content": prefix.text})
        return put | {"messages": Encoded((begun, b"," + own + b"]"))}
    content = last.get("content")
    if not isinstance(content, str):
        return None

    def up_to_content() -> JSON:
        others = {key: value for key, value in last.items() if key != "content"}
        return [*messages[:-1], {**others, "content": content}]  # last, so that the prefix can follow its text

    begun = body.once("messages to be continued", up_to_content, open=len('"}]'))
    return put | {"messages": Encoded((begun, dumps(prefix.text)[1:] + b"}]"))}


def as_one_call(usage: Usage, prefix: Prefix, prompt: int | None) -> Usage:
    """Return the usage of a choice whose last call continued from a prefix, as one call would have reported it.

    prompt: tokens of the original prompt; None if no call reported them. Then the prefix is taken to be as long as
    `prefix.tokens`.
    """
    original = max(0, usage.prompt - prefix.tokens) if prompt is None else min(prompt, usage.prompt)
    details = usage.prompt_details
    return replace(
        usage,
        prompt=original,
        completion=usage.total - original,
        prompt_details=None if details is None else {key: min(count, original) for key, count in details.items()},
    )

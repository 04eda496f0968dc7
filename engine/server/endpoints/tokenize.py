"""/tokenize, /detokenize and /tokenizer_info, as vLLM has them: a text or a chat to the model's tokens, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from engine.server.asking.chat import FIELDS, Chat, read_chat
from engine.server.asking.members import Members, is_integer
from engine.server.endpoints.common import SERVING, json_answer, read
from engine.server.preparing.prompts import context_length
from engine.server.preparing.rendering import render
from engine.server.serving import Serving
from engine.text.tokenizer import Tokenizer
from nproxy.openai.body import Body
from nproxy.openai.errors import ApiError, invalid_request
from nproxy.openai.jsonvalue import JSON, dumps
from nproxy.openai.refusals import missing, wrong_type
from nproxy.openai.requests import parse_chat
from nproxy.openai.typed import unknown

_LONGEST = 1 << 20
"""Characters of a text, and tokens of a list: more than any context takes, and a second's work."""

_OPTIONS = frozenset({"model", "add_special_tokens", "return_token_strs"})


async def tokenize(request: web.Request) -> web.Response:
    """POST /tokenize {"prompt" | "messages", ...}: {"count", "max_model_len", "tokens", "token_strs"}."""
    serving = request.app[SERVING]
    with serving.request():
        asked = await read(request, lambda body: _read_asked(Members(body.fields), serving))
        longest = context_length(serving.router.ready)
        tokens, strings = await serving.aside(lambda: asked.tokens(serving.tokenizer))
        return json_answer({"count": len(tokens), "max_model_len": longest, "tokens": tokens, "token_strs": strings})


async def detokenize(request: web.Request) -> web.Response:
    """POST /detokenize {"tokens"}: {"prompt"}, with special tokens written out, so that tokenizing it gives the tokens
    again.
    """
    serving = request.app[SERVING]
    with serving.request():
        tokens = await read(request, lambda body: _read_tokens(body.fields, serving))
        text = await serving.aside(lambda: serving.tokenizer.backend.decode(tokens, skip_special_tokens=False))
        return json_answer({"prompt": text})


async def tokenizer_info(request: web.Request) -> web.Response:
    """GET /tokenizer_info: the model's named special tokens and its chat template (null for a model without one)."""
    serving = request.app[SERVING]
    template = serving.tokenizer.template
    return json_answer(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **serving.tokenizer.special_strings,
            "chat_template": None if template is None else template.source,
        }
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be tokenized: a text, or a chat that the model's template writes.

    special: whether the text gets the tokens that begin and end a prompt (BOS, EOS). strings: whether each token's
    spelling in the vocabulary is returned, too.
    """

    source: str | Chat
    special: bool
    strings: bool

    def tokens(self, tokenizer: Tokenizer) -> tuple[list[int], list[str] | None]:
        """Return the tokens, and their spellings if they are asked for; raise ApiError 400 for what is too long."""
        text = render(self.source, tokenizer) if isinstance(self.source, Chat) else self.source
        if len(text) > _LONGEST:
            raise _too_long("messages" if isinstance(self.source, Chat) else "prompt", f"{len(text)} characters")
        tokens = list(tokenizer.encode(text) if self.special else tokenizer.encode_chat(text))
        return tokens, [tokenizer.backend.id_to_token(token) or "" for token in tokens] if self.strings else None


def _read_asked(members: Members, serving: Serving) -> _Asked:
    _check_model(members.get("model"), serving)
    fields, chat = members.values, members.get("messages") is not None
    known = _OPTIONS | (FIELDS if chat else {"prompt"})
    for name in fields.keys() - known:
        raise unknown(name, known)
    if chat:
        body = {"model": serving.model, **{name: fields[name] for name in FIELDS & fields.keys()}}
        source: JSON | Chat = read_chat(parse_chat(Body.parse(dumps(body)), serving.limits).body.fields)
    else:
        source = members.get("prompt")
    if source is None:
        raise missing("prompt")
    if not isinstance(source, str | Chat):
        raise wrong_type("prompt", "a string", source)
    return _Asked(
        source,
        special=_flag(members, "add_special_tokens", default=not chat),
        strings=_flag(members, "return_token_strs", default=False),
    )


def _flag(members: Members, name: str, *, default: bool) -> bool:
    return default if members.get(name) is None else members.flag(name)


def _read_tokens(fields: Mapping[str, JSON], serving: Serving) -> list[int]:
    known = {"model", "tokens"}
    for name in fields.keys() - known:
        raise unknown(name, known)
    _check_model(fields.get("model"), serving)
    value, vocab_size = fields.get("tokens"), serving.router.ready.vocab_size
    if value is None:
        raise missing("tokens")
    if not isinstance(value, list):
        raise wrong_type("tokens", "an array of token ids", value)
    if len(value) > _LONGEST:
        raise _too_long("tokens", f"{len(value)} tokens")
    tokens: list[int] = []
    for number, token in enumerate(value):
        if not is_integer(token):
            raise wrong_type(f"tokens.{number}", "a token id", token)
        if not 0 <= token < vocab_size:
            raise invalid_request("A token is outside the model's vocabulary.", param=f"tokens.{number}")
        tokens.append(token)
    return tokens


def _check_model(model: JSON, serving: Serving) -> None:
    """Check the model's name, which may be left out: the model and its adapters share one tokenizer."""
    if model is None:
        return
    if not isinstance(model, str):
        raise wrong_type("model", "a string", model)
    serving.adapter(model)


def _too_long(param: str, size: str) -> ApiError:
    return invalid_request(
        f"Invalid '{param}': it has {size}; at most {_LONGEST} are allowed per request.",
        param=param,
        code="string_above_max_length",
    )

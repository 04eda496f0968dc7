"""POST /v1/embeddings: one vector for each text or list of token ids."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from engine.messages import Embed
from engine.server.asking.members import Members
from engine.server.asking.salt import salt_of
from engine.server.endpoints.common import SERVING, json_answer, read
from engine.server.preparing.embedding_inputs import prompts_of
from engine.server.preparing.pooling import Pooling
from nproxy.openai.errors import invalid_request
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import missing, wrong_type
from nproxy.openai.requests import Prompt, read_prompts
from nproxy.openai.typed import unknown

_MOST_INPUTS = 2048
_MOST_TOKENS = 300_000
"""In one request; both limits are OpenAI's."""

_FIELDS = frozenset({"model", "input", "encoding_format", "dimensions", "user"})
_FORMATS = ("float", "base64")


async def embeddings(request: web.Request) -> web.Response:
    """Answer with one vector for each input, in order; raise ApiError 400 if the model makes none."""
    serving = request.app[SERVING]
    with serving.request():
        asked = await read(request, lambda body: _read_asked(Members(serving.named(body.fields))))
        adapter, salt = serving.adapter(asked.model), salt_of(request.headers, {})
        pooling, router = serving.pooling, serving.router
        if pooling is None:
            raise invalid_request(
                "This model's files define no pooling, so it gives no embeddings; set `engine.pooling` (--pooling of an"
                " engine by itself) to `mean` or `last` to pool its last hidden states.",
                param="model",
                code="unsupported_model",
            )
        if asked.dimensions is not None and asked.dimensions not in pooling.lengths:
            raise invalid_request(
                f"This model's embeddings cannot be shortened to {asked.dimensions} dimensions.",
                param="dimensions",
                code="unsupported_value",
            )
        prompts = await serving.aside(lambda: prompts_of(asked.inputs, serving.tokenizer, router.ready, pooling))
        if (count := sum(map(len, prompts))) > _MOST_TOKENS:
            raise invalid_request(
                f"At most {_MOST_TOKENS} tokens are allowed per request; these are {count}.", param="input"
            )
        vectors = await router.embed([Embed(0, prompt, pooling.kind, salt, adapter) for prompt in prompts])
        data = await serving.aside(lambda: _data(vectors, pooling, asked))
        usage = {"prompt_tokens": count, "total_tokens": count}
        return json_answer({"object": "list", "data": data, "model": asked.model, "usage": usage})


@dataclass(frozen=True, slots=True)
class _Asked:
    model: str
    inputs: tuple[Prompt, ...]
    base64: bool
    dimensions: int | None


def _read_asked(members: Members) -> _Asked:
    for name in members.values.keys() - _FIELDS:
        raise unknown(name, _FIELDS)
    model, form = members.get("model"), members.get("encoding_format")
    if model is None:
        raise missing("model")
    if not isinstance(model, str):
        raise wrong_type("model", "a string", model)
    if form is not None and form not in _FORMATS:
        raise invalid_request("'encoding_format' must be 'float' or 'base64'.", param="encoding_format")
    if not isinstance(user := members.get("user"), str | None):
        raise wrong_type("user", "a string", user)
    inputs, _ = read_prompts(members.values, "input")
    if len(inputs) > _MOST_INPUTS:
        raise invalid_request(f"At most {_MOST_INPUTS} inputs are allowed per request.", param="input")
    return _Asked(model, inputs, form == "base64", members.integer("dimensions", 1))


def _data(vectors: Sequence[tuple[float, ...]], pooling: Pooling, asked: _Asked) -> list[JSON]:
    finished = [pooling.finish(vector, asked.dimensions) for vector in vectors]
    return [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if asked.base64 else list(vector)}
        for index, vector in enumerate(finished)
    ]


def _base64(vector: Sequence[float]) -> str:
    """Return the values as little-endian 32-bit floats in base64, which OpenAI's clients unpack."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()

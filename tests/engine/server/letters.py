"""A tokenizer of single letters, and orders for it, for tests of reading and preparing requests in the server."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from engine.messages import Ready
from engine.server.asking.order import Order, read_order
from engine.server.preparing.prompts import Prompt, prepare
from engine.text.detokenizer import TokenBytes
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from nproxy.openai.body import Body
from nproxy.openai.requests import Limits, parse_chat, parse_completion

READY = Ready(
    vocab_size=300,
    max_model_len=100,
    blocks=64,
    block_size=16,
    kv_bytes_per_token=1,
    eos_tokens=frozenset({0}),
    device="cpu",
    dtype="float32",
)


def letters() -> Tokenizer:
    """Return a byte-level tokenizer without merges: one token per byte, and <s> before a prompt that is not a chat."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0} | {letter: number + 1 for number, letter in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    template = ChatTemplate("{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{{ think }}", {})
    return Tokenizer(backend, TokenBytes.of(backend), template, begin=0)


LETTERS = letters()


def chat(**fields: Any) -> Order:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return read_order(parse_chat(Body.parse(json.dumps(body).encode()), Limits()))


def completion(**fields: Any) -> Order:
    body = {"model": "m", "prompt": "hi", **fields}
    return read_order(parse_completion(Body.parse(json.dumps(body).encode()), Limits()))


def text_of(prompt: Prompt) -> str:
    return LETTERS.decode(prompt.tokens)


def only(order: Order) -> Prompt:
    (prompt,) = prepare(order, LETTERS, READY)
    return prompt

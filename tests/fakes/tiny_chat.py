"""A complete chat model of a few kilobytes: random weights, a token for each byte, and the marks of Hermes and Qwen3.

It says noise, which is useful: split characters, long answers, nothing learned. A test that needs a certain word or
call from it restricts it by a grammar, or to some of its tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from tests.fakes import tiny_models

SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
END = SPECIAL.index("<|im_end|>")
THOUGHT = len(SPECIAL) + MARKS.index("</think>")

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}<tool_call>{{ tool | tojson }}</tool_call>
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>
{% else %}<think>

</think>

{% endif %}{% endif %}"""


def tokenizer() -> tokenizers.Tokenizer:
    """A tokenizer with a token for each byte, after the special tokens and the marks."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *MARKS, *letters])}
    made = tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    made.add_tokens(list(MARKS))
    return made


def save(folder: Path, context: int = 2048, kind: str = "llama", **settings: Any) -> Path:
    """Write the model, of a transformers kind, to a folder as a Hugging Face checkpoint with tokenizer and template."""
    made = tokenizer()
    settings |= {"bos_token_id": 0, "eos_token_id": END, "max_position_embeddings": context}
    tiny_models.save(folder, kind, vocab_size=made.get_vocab_size(), **settings)
    made.save(str(folder / "tokenizer.json"))
    config = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[END], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def tokens(text: str) -> list[int]:
    """The tokens of a text, without special tokens."""
    ids: list[int] = tokenizer().encode(text).ids
    return ids

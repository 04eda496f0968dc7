"""A model's tokenizer and chat template, loaded without torch and without transformers.

A prompt is encoded like in `transformers` and vLLM, with special tokens recognised wherever they are. This applies to
what a chat template writes between the messages, and also to text inside a user's message that looks like a special
token. Like with those servers, whoever passes untrusted text to a model must remove such strings first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import ModelError
from engine.ggufmeta import read_metadata
from engine.json_files import read_object
from engine.model_files import MOST_BYTES, demand_file, naming
from engine.text.detokenizer import TokenBytes
from engine.text.parsers.families import AUTO, Families, choose
from engine.text.template import ChatTemplate
from engine.text.vocabulary import special_strings, tokenizer_from_metadata

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_PLAIN, _WITH_TOOLS = "default", "tool_use"  # names of templates, if a model has several


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Encodes text, with the table for the way back. Threads may share one."""

    backend: tokenizers.Tokenizer
    table: TokenBytes
    template: ChatTemplate | None
    """None if the model has none (a base model); it supports no chat then."""
    begin: int | None
    """The token that stands for an empty prompt; None if the model has none."""
    families: Families = field(default_factory=Families)
    """How the model writes tool calls and reasoning."""
    tool_template: ChatTemplate | None = None
    """Replaces `template` in chats with tools, if the model has a template of its own for them."""
    special_strings: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Named special tokens, such as `eos_token`."""

    def template_for(self, *, tools: bool) -> ChatTemplate | None:
        """Return the template of a chat with tools or without."""
        return self.tool_template or self.template if tools else self.template

    def special(self, text: str) -> int | None:
        """Return the id of the token with this spelling that a grammar must name by its id; None if the text is
        ordinary.

        llguidance treats every added token in angle brackets as special, even if it is not special to the tokenizer,
        like Qwen's <tool_call>.
        """
        number: int | None = self.backend.token_to_id(text)
        bracketed = text.startswith("<") and text.endswith(">")
        return number if bracketed or number in self.table.special else None

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode a prompt that is no chat; it begins with BOS, and ends with EOS, if the model wants that."""
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, text: str) -> tuple[int, ...]:
        """Encode what the chat template wrote, which already contains all special tokens."""
        return self._encode(text, add_special_tokens=False)

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of a whole list of tokens. special: include special tokens."""
        read = self.table.spelling if special else self.table.bytes_of
        return b"".join(map(read, tokens)).decode(errors="replace")

    def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        # The batch form releases the interpreter lock while it works; the plain one does not.
        (encoding,) = self.backend.encode_batch([text], add_special_tokens=add_special_tokens)
        return tuple(encoding.ids)


def load_tokenizer(model: Path, tool_parser: str = AUTO, reasoning_parser: str = AUTO) -> Tokenizer:
    """Load from a Hugging Face folder or a GGUF file; raise ModelError, which says what is wrong.

    tool_parser, reasoning_parser: names of families, or "auto" or "none"; raises ConfigError for others.
    """
    with naming(model):
        tokenizer = _from_folder(model) if model.is_dir() else _from_gguf(model)
    template = tokenizer.template_for(tools=True)
    source, knows_tools = (None, False) if template is None else (template.source, "tools" in template.variables)
    return replace(tokenizer, families=choose(tool_parser, reasoning_parser, source, knows_tools=knows_tools))


def _from_gguf(path: Path) -> Tokenizer:
    metadata = read_metadata(path)
    backend = tokenizer_from_metadata(metadata)
    names = {"tokenizer.chat_template": _PLAIN, "tokenizer.chat_template.tool_use": _WITH_TOOLS}
    templates = {name: source for key, name in names.items() if isinstance(source := metadata.get(key), str)}
    return _assemble(backend, templates, special_strings(metadata))


def _from_folder(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no tokenizer.json")
    demand_file(path, MOST_BYTES)
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises plain Exception
        raise ModelError(f"{path} cannot be read: {error}") from error
    backend.no_truncation()  # some files carry the settings of their training
    backend.no_padding()
    config = read_object(folder / "tokenizer_config.json", optional=True)
    return _assemble(backend, _template_sources(folder, config), _special_strings(folder, config))


def _assemble(backend: tokenizers.Tokenizer, sources: Mapping[str, str], special: Mapping[str, str]) -> Tokenizer:
    begin = special.get("bos_token", special.get("eos_token"))
    templates = {name: ChatTemplate(sources[name], special) for name in (_PLAIN, _WITH_TOOLS) if name in sources}
    return Tokenizer(
        backend=backend,
        table=TokenBytes.of(backend),
        template=templates.get(_PLAIN),
        begin=None if begin is None else backend.token_to_id(begin),
        tool_template=templates.get(_WITH_TOOLS),
        special_strings=special,
    )


def _template_sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the folder's templates by their names: from files of their own, or from a key of the configuration."""
    files = {_PLAIN: "chat_template.jinja", _WITH_TOOLS: f"additional_chat_templates/{_WITH_TOOLS}.jinja"}
    found = {name: _text(folder / file) for name, file in files.items() if (folder / file).is_file()}
    if _PLAIN in found:
        return found
    if (value := config.get("chat_template")) is None:
        value = read_object(folder / "chat_template.json", optional=True).get("chat_template")
    if isinstance(value, str):
        value = [{"name": _PLAIN, "template": value}]
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return {str(item.get("name", _PLAIN)): item["template"] for item in items if isinstance(item.get("template"), str)}


def _special_strings(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return `bos_token`, `eos_token` and so on, which are written as strings or as objects with `content`.

    As in transformers, a configuration that lists its added tokens says all; otherwise `special_tokens_map.json` says
    more, and is right.
    """
    written = {name: config.get(name) for name in _SPECIAL}
    if isinstance(extra := config.get("extra_special_tokens"), dict):
        written |= extra
    if "added_tokens_decoder" not in config:
        written |= read_object(folder / "special_tokens_map.json", optional=True)
    found = {}
    for name, value in written.items():
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and name.endswith("_token"):
            found[name] = text
    return found


def _text(path: Path) -> str:
    demand_file(path, MOST_BYTES)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error

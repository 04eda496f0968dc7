"""docs/reference/config.md: every key of the settings and of the key file, from their types and docstrings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from docs.generate.markdown import code, table
from nproxy.config.changes import BOUND, THERE_OR_NOT
from nproxy.config.hints import PREFIX
from nproxy.config.keys import KeysFile
from nproxy.config.schema import schema
from nproxy.config.settings import Config

Schema = Mapping[str, Any]

_INTRODUCTION = """\
# Settings

Every key of the settings file, generated from the types that read it (`make docs`). `nproxy config-schema` prints the
same as a JSON schema, and `nproxy check FILE` prints each error of a file with its line, and of the keys file and the
certificate that it names. Three kinds are shown by themselves: a file that is not valid YAML, variables that name no
key, and, once there is no other error, an engine or a model that is not there. An unknown key is an error. `check` sees
only the file and this machine's environment: it cannot know which changes a running gateway would refuse, nor what
upstreams answer.

Later sources override earlier ones: defaults, the file (`--config`), environment variables, command-line options. A
variable's name is the key's path in capitals, with two underscores between levels; `N` stands for an index in a list,
counted from 0, and your own words in maps keep their case (`NPROXY_UPSTREAMS__0__MODELS__Fast=llama3.2`). A value that
begins with `[` or `{` is read as YAML, which also takes words that cannot be part of a variable's name
(`NPROXY_UPSTREAMS__0__MODELS='{gpt-4: llama3.2}'`); `null` is null. An empty value is null too, but refused for a
section that null would switch off and for a secret. A secret is `${NAME}` (from the environment), `file:PATH`, or the
secret itself. Relative paths start at the file's folder, those of options at the current directory.

A changed file is [reloaded](../fleet.md#reload) by a running gateway. Keys marked with ⟲ are read only at the start.

These variables are not keys of the file. With `NPROXY_CACHE=DIR`, the default model is stored in `DIR/models` instead
of `~/.cache/nproxy/models`. `XDG_CACHE_HOME` replaces `~/.cache` in this path and in `~/.cache/nproxy/kernels`, the
engine's compiled kernels. `HF_HOME` moves the cache of the Hugging Face hub, and `HF_TOKEN` gives access to restricted
models. `SSL_CERT_FILE` names [certificate authorities](../guides/security.md#tls) for upstreams.
"""


def page() -> str:
    """Return the text of docs/reference/config.md."""
    settings, keys = schema(Config), schema(KeysFile)
    return "\n".join(
        [
            _INTRODUCTION,
            *_section(settings, settings, "", "The file"),
            "## The file of keys\n",
            f"What `auth.api_keys_file` names. {keys['description']} [How keys are used](../fleet.md#keys).\n",
            *_section(keys, keys["$defs"]["Key"], "keys[].", "`keys[]`", variables=False),
        ]
    )


def _section(whole: Schema, section: Schema, path: str, title: str, *, variables: bool = True) -> Iterator[str]:
    """Yield a section of the settings as a table of its own keys, and then its subsections."""
    head = ["key", "type", "default", *(["variable"] if variables else []), "meaning"]
    rows, inner = [], []
    for name, told in section["properties"].items():
        key, kinds = path + name, _alternatives(whole, told)
        inner += [(key + "[]." if many else key + ".", kind) for kind, many in _sections(whole, kinds)]
        default = "required" if name in section.get("required", ()) else _default(told)
        variable = [code(_variable(key))] if variables else []
        mark = " ⟲" if _at_the_start(key) else ""
        rows.append(
            [code(name) + mark, _type(whole, told), default, *variable, told.get("description") or _about(whole, kinds)]
        )
    yield f"## {title}\n"
    if path:
        yield section.get("description", "") + "\n"
    yield table(head, rows)
    for below, kind in inner:
        yield from _section(whole, kind, below, code(below.removesuffix(".")), variables=variables)


def _alternatives(whole: Schema, told: Schema) -> list[Schema]:
    """Return the schemas that a key may have, with references resolved and without null."""
    found = told.get("anyOf") or told.get("oneOf") or [told]
    kinds = [whole["$defs"][kind["$ref"].rpartition("/")[2]] if "$ref" in kind else kind for kind in found]
    return [kind for kind in kinds if kind.get("type") != "null"]


def _sections(whole: Schema, kinds: list[Schema]) -> Iterator[tuple[Schema, bool]]:
    """Yield those schemas that have documented keys of their own, and whether they describe a list's items."""
    for kind in kinds:
        if "properties" in kind and "description" in kind:
            yield kind, False
        if kind.get("type") == "array":
            yield from ((item, True) for item, _ in _sections(whole, _alternatives(whole, kind["items"])))


def _type(whole: Schema, told: Schema) -> str:
    null = any(kind.get("type") == "null" for kind in told.get("anyOf", ()))
    words = dict.fromkeys(_word(whole, kind) for kind in _alternatives(whole, told))
    return " or ".join([*words, *(["null"] if null else [])])


def _word(whole: Schema, kind: Schema) -> str:
    match kind:
        case {"properties": _, "description": _}:
            return "section"
        case {"enum": values}:
            return " or ".join(code(str(value)) for value in values)
        case {"const": value}:
            return code(str(value))
        case {"type": "array", "items": items}:
            return f"list of {_type(whole, items)}".replace("section", "sections")
        case {"type": "array"}:
            return "list"
        case {"type": "object", "properties": properties}:
            return "{" + ", ".join(map(code, properties)) + "}"
        case {"type": "object"}:
            return "map of text to text"
        case {"type": "boolean"}:
            return "true or false"
        case {"type": "integer" | "number" as number}:
            return " ".join(["whole number" if number == "integer" else "number", *_range(kind)])
        case {"type": "string", "pattern": pattern}:
            return f"text: {code(pattern)}"
        case {"type": "string"}:
            return "text"
    raise ValueError(f"no word for {kind}")


def _range(kind: Schema) -> Iterator[str]:
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    said = [f"{sign} {kind[bound]:g}" for bound, sign in bounds.items() if bound in kind]
    if said:
        yield ", ".join(said)


def _default(told: Schema) -> str:
    default = told.get("default")
    if isinstance(default, dict) and default:
        return "as below"
    return code(json.dumps(default)) if "default" in told else "empty"


def _variable(key: str) -> str:
    return PREFIX + key.replace("[]", ".N").replace(".", "__").upper()


def _at_the_start(key: str) -> bool:
    path = tuple(key.split("."))
    return path in BOUND or path in THERE_OR_NOT or path[0] == "engine"


def _about(whole: Schema, kinds: list[Schema]) -> str:
    """Return the descriptions of the sections at a key that has no description itself."""
    return " ".join(kind["description"] for kind, _ in _sections(whole, kinds))

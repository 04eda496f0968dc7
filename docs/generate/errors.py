"""docs/reference/errors.md: the errors of nproxy and its engine, from the code, and what to do, from errors.toml."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from docs.generate.failed import failed
from docs.generate.markdown import code, table
from docs.generate.raised import Raised, raised
from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.failures import as_error
from nproxy.choices.retry import resumable, retryable

EXPLAINED = Path(__file__).with_name("errors.toml")
_ADMIN = "nproxy.gateway.admin."
_BOTH_PORTS = "nproxy.gateway.answering"

_INTRODUCTION = """\
# Errors

Every error that nproxy and the built-in engine raise, generated from the code (`make docs`). `{name}` in a message
stands for a value.

```json
{
  "error": {
    "message": "The model 'gpt-7' does not exist.",
    "type": "invalid_request_error",
    "param": "model",
    "code": "model_not_found"
  }
}
```

- An upstream's own error keeps its status (but a 401 or 403 that refuses nproxy's own key is a 502 `upstream_auth`)
  and is converted to this form; fields besides the four are kept. An error within a 200 gets the status that it names
  if that is a 4xx (except 401 and 403), otherwise 502.
- In a stream that has begun, the status can no longer change: the error is an event `data: {"error": {...}}`, and no
  `[DONE]` follows. With `on_leg_failure: partial` it is in the choice that failed, next to `finish_reason: "error"`.
- `retry-after` (and `retry-after-ms`) say when to try again. `x-should-retry: false` tells OpenAI's clients not to:
  nproxy has already retried (never sent with a 429, which needs a longer pause than nproxy makes).
- The answer's `x-request-id` is `request_id` in the [log](../fleet.md#operations).
"""


@dataclass(frozen=True)
class Explained:
    """When an error occurs, and what to do."""

    when: str
    do: str


def page() -> str:
    """Return the text of docs/reference/errors.md. Raises LookupError if code and explanations do not match."""
    by_code: defaultdict[tuple[int, str], list[Raised]] = defaultdict(list)
    for error in raised():
        by_code[error.status, str(error.code or "")].append(error)
    explained = _explained()
    if by_code.keys() != explained.keys():
        raise LookupError(f"in the code or in {EXPLAINED.name} only: {sorted(by_code.keys() ^ explained.keys())}")
    return "\n".join([_INTRODUCTION, _overview(by_code), _CALLS, _calls(), *_sections(by_code, explained)])


_CALLS = """\
## How calls to upstreams fail

The word is the `outcome` of `nproxy_legs_total` and of the [log](logs.md). Of several failures the client gets the most
informative one, unless retries, other replicas, [fallback](../fleet.md#fallback) or [resume](../fleet.md#resume) made
up for them.
"""


def _calls() -> str:
    """Return a table of the kinds of failure and their effects, from the functions that decide these."""
    said = dict(re.findall(r'(?m)^ +[A-Z_]+ = "(\w+)"  # (.+)$', inspect.getsource(FailureKind)))
    head = ["outcome", "what happened", "the client's error", "retried", "resumed"]
    return table(head, ([code(kind), said[kind], _told(kind), *_mended(kind)] for kind in FailureKind))


_TOLD_AS_IT_IS = frozenset({FailureKind.STATUS, FailureKind.IN_BAND})


def _told(kind: FailureKind) -> str:
    if kind in _TOLD_AS_IT_IS:
        return "the upstream's own"
    error = as_error([Failure(kind, "")], retries_spent=False)
    return f"[{error.status} {_name(error.code or '')}](#{_anchor(error.status, error.code or '')})"


def _mended(kind: FailureKind) -> tuple[str, str]:
    if kind is FailureKind.STATUS:
        retried = [status for status in range(400, 600) if retryable(Failure(kind, "", status=status))]
        return ", ".join(map(str, retried)), "no"
    failure = Failure(kind, "", status=500)
    return ("yes" if retryable(failure) else "no", "yes" if resumable(failure) else "no")


def _explained() -> dict[tuple[int, str], Explained]:
    entries = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["error"]
    return {(entry["status"], entry["code"]): Explained(entry["when"], entry["do"]) for entry in entries}


Found = Mapping[tuple[int, str], list[Raised]]


def _overview(found: Found) -> str:
    rows = (
        (
            str(status),
            f"[{_name(word)}](#{_anchor(status, word)})",
            code(str(found[status, word][0].type)),
            _by(found[status, word]),
        )
        for status, word in sorted(found)
    )
    return table(["status", "code", "type", "from"], rows)


def _sections(found: Found, explained: Mapping[tuple[int, str], Explained]) -> Iterator[str]:
    for status, word in sorted(found):
        yield f"## {status} {_name(word)}\n"
        told = explained[status, word]
        yield f"{told.when} **What to do:** {told.do}\n"
        yield from (f"- {line}" for line in [*_messages(found[status, word]), *_of_upstreams(status, word)])
        yield ""


def _of_upstreams(status: int, word: str) -> list[str]:
    """Return the messages of failed calls that reach clients as this error, each once."""
    errors = {kind: as_error([Failure(kind, "")], retries_spent=False) for kind in failed().keys() - _TOLD_AS_IT_IS}
    kinds = [kind for kind, error in errors.items() if (error.status, error.code) == (status, word)]
    return sorted({message for kind in kinds for message in failed()[kind]})


def _name(word: str) -> str:
    return code(word or "null")


def _anchor(status: int, word: str) -> str:
    return f"{status}-{word or 'null'}"


def _by(errors: Iterable[Raised]) -> str:
    """Return where the errors come from: the gateway, its admin port, the engine. Shared readers count for both."""
    rooms = {error.module.split(".")[0] if not error.module.startswith(_ADMIN) else "admin" for error in errors}
    if any(error.module == _BOTH_PORTS for error in errors):
        rooms.add("admin")
    if any(error.module.startswith("nproxy.openai.") for error in errors):
        rooms.add("engine")
    return ", ".join(
        name for room, name in (("nproxy", "gateway"), ("admin", "admin port"), ("engine", "engine")) if room in rooms
    )


def _messages(errors: Iterable[Raised]) -> list[str]:
    """Return the messages, each once, with the fields they name; without those that are another one filled in."""
    params: defaultdict[str, set[str]] = defaultdict(set)
    for error in errors:
        params[str(error.message)] |= {str(error.param)} if isinstance(error.param, str) else set()
    kept = [
        text
        for text in params
        if not _OPEN.fullmatch(text) and not any(_fills(text, form) for form in params if form != text)
    ]
    return [f"{text}{_about(params[text])}" for text in sorted(kept, key=str.lower)]


_OPEN = re.compile(r"\{[^}]*\}")


def _fills(text: str, form: str) -> bool:
    """Whether a text is a form with its places filled in; if two match each other, only the greater one counts."""
    if _OPEN.fullmatch(form) or not re.fullmatch(_pattern(form), text):
        return False
    return text > form if re.fullmatch(_pattern(text), form) else True


def _pattern(form: str) -> str:
    return ".+".join(map(re.escape, _OPEN.split(form)))


def _about(params: set[str]) -> str:
    named = sorted(param for param in params if not _OPEN.search(param))
    return f" ({', '.join(map(code, named))})" if named else ""

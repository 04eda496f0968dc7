"""docs/reference/logs.md: the fields of the access log, from the table by which they are written."""

from __future__ import annotations

from docs.generate.markdown import code, table
from nproxy.gateway.access import FIELDS

_INTRODUCTION = """\
# Log lines

Made from the code (`make docs`). Every record is one line on standard error: a JSON object, or with
`telemetry.log_format: text` the time of day, the level, the message, and `key=value` for the rest. JSON has besides:

| field | what it says |
| --- | --- |
| `time` | UTC, to the millisecond, as in `2026-11-20T19:32:00.123Z` |
| `level` | `debug`, `info`, `warning` or `error` |
| `logger` | which part of nproxy speaks |
| `message` | what happened; of the access log, the endpoint |
| `error` | the traceback of a fault |

## The access log

One line for each request, by the logger `nproxy.access`, when the request is over: at `info`, and at `debug` for
health, metrics and status, for pages, and for the admin port, where only `request_id`, `method` and `status` are told.
`message` is the endpoint as metrics name it: `chat/completions`, `completions`, `models`, `passthrough`, `preflight`,
or `other`.
What is unknown of a request, or is not so, is left out; times are in seconds.
"""

_END = """
## What became no request

Bytes that are no HTTP, or a head that is too long, are answered with 400 or 431 and are in no access log. Of each
`why` a process writes one line a minute at `info`, by the logger `nproxy.gateway`: `what came is no request`, or, on a
port with TLS, `what came is no TLS that is spoken here`. It has `client` (who connected, be it a proxy), `port`, and
`untold`: how many of its kind had no line since the last. Nothing of the bytes is told. Connections that end without a
word have no line.
"""


def page() -> str:
    """Return the text of docs/reference/logs.md."""
    return f"{_INTRODUCTION}\n{table(('field', 'what it says'), ((code(one.name), one.text) for one in FIELDS))}{_END}"

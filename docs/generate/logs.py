"""docs/reference/logs.md: the fields of the access log, from the table by which they are written."""

from __future__ import annotations

from docs.generate.markdown import code, table
from nproxy.gateway.access import FIELDS

_INTRODUCTION = """\
# Log lines

Generated from the code (`make docs`). Every record is one line on standard error: a JSON object, or with
`telemetry.log_format: text` the time of day, the level, the message, and `key=value` for the other fields. Only the
greeting at the start (two or three lines that say where nproxy listens) and the reason why a start failed are plain
text. JSON always has:

| field | meaning |
| --- | --- |
| `time` | UTC, to the millisecond, as in `2026-11-20T19:32:00.123Z` |
| `level` | `debug`, `info`, `warning` or `error` |
| `logger` | the part of nproxy that logs |
| `message` | what happened; in the access log, the endpoint |
| `error` | the traceback of an unexpected error |

## The access log

One line for each request, by the logger `nproxy.access`, when the request has ended: at `info`, and at `debug` for
health, metrics and status, for pages, and for the admin port, where only `request_id`, `method` and `status` are
logged. `message` is the endpoint as metrics name it: `chat/completions`, `completions`, `models`, `passthrough`,
`preflight`, or `other`. A field that is unknown or does not apply is left out; times are in seconds.
"""

_END = """
## Data that is not a request

Data that is not HTTP, or a head that is too long, is answered with 400 or 431 and is not in the access log. For each
`why` a process writes one line a minute at `info`, by the logger `nproxy.gateway`: `received data is not a request`,
or, on a port with TLS, `TLS handshake failed`. It has `client` (the peer's address, which may be a proxy's), `port`,
`request_id` (the answer's `x-request-id`; none if the data is in the body of a request, which has a line of its own),
and `untold`: how many of the same kind were not logged since the last line. The data
itself is not logged. Connections that are closed without sending anything are not logged.

## Refusals

When the gateway begins to refuse requests because it is full, each process writes one line at `warning`, by the logger
`nproxy.gateway`: `requests are refused`. When it has refused none for a minute, it writes `no requests are refused any
more` at `info`, with their number (`refused`) and the `seconds` from the first to the last. Both have a `why`, and each
reason has lines of its own: `queue_full`, `timeout` (waited too long in the queue), `memory`, `bodies` (the memory for
bodies is in use), or `unanswered` (the process that admits requests does not answer). A key that reaches its rates, and
requests that are too wide, make no such lines.

When clients use half of the open files that a process may have, it closes further connections, and writes one line a
minute at `warning`: `too many connections; new ones are closed`, with their limit (`most`) and `untold`. The line for
upstream calls is `too many calls at once; new ones fail`, by the logger `nproxy.upstreams`.
"""


def page() -> str:
    """Return the text of docs/reference/logs.md."""
    rows = ((code(name), text) for name, text in FIELDS.items())
    return f"{_INTRODUCTION}\n{table(('field', 'meaning'), rows)}{_END}"

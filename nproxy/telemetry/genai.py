"""OpenTelemetry's metrics of a generation request and its cost, with their names as Prometheus writes them.

The semantic conventions for generative AI metrics, status Development (open-telemetry/semantic-conventions-genai,
docs/gen-ai/gen-ai-metrics.md). Dots become underscores and a unit becomes a suffix; `{token}` is an annotation and not
a unit. The bucket bounds are the recommended ones, except for time per output chunk: those are its instrument's, see
`Metrics`.

Of the two sides that the conventions distinguish, `server` is what clients of nproxy see, and `client` is what nproxy,
as a client, sees of its upstreams. `upstream` is a label besides the conventions' attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nproxy.telemetry.observed import Labels, View

OPERATIONS: Mapping[str, str] = {"chat/completions": "chat", "completions": "text_completion"}
"""gen_ai.operation.name by endpoint. For requests that are passed through, the operation is unknown."""
PROVIDER = "openai"
"""gen_ai.provider.name says which flavour of telemetry this is; every upstream speaks OpenAI's protocol."""
TOKEN_TYPES: Mapping[str, str] = {"prompt": "input", "completion": "output"}

DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = tuple(float(4**power) for power in range(14))

_ATTRIBUTES = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "upstream")


def _attributes(labels: Labels) -> dict[str, str] | None:
    operation = OPERATIONS.get(labels["endpoint"])
    if operation is None:
        return None
    return {
        "gen_ai_operation_name": operation,
        "gen_ai_provider_name": PROVIDER,
        "gen_ai_request_model": labels["model"],
        "upstream": labels["upstream"],
    }


def _with_error(error: Callable[[Labels], str]) -> Callable[[Labels], Labels | None]:
    """Return a function that adds error.type to the attributes; it is empty if there is no error."""

    def labelled(labels: Labels) -> Labels | None:
        attributes = _attributes(labels)
        return None if attributes is None else {**attributes, "error_type": error(labels)}

    return labelled


def _status(labels: Labels) -> str:
    return labels["code"] if int(labels["code"]) >= 400 else ""


def _outcome(labels: Labels) -> str:
    return "" if labels["outcome"] == "ok" else labels["outcome"]


def _used(labels: Labels) -> Labels | None:
    """Count what is billed, as the conventions want it: what upstreams computed, not what clients are told."""
    attributes = _attributes(labels)
    if attributes is None or labels["side"] != "upstream":
        return None
    return {**attributes, "gen_ai_token_type": TOKEN_TYPES[labels["type"]]}


REQUEST_DURATION = View(
    "gen_ai_server_request_duration_seconds",
    "Time from the start of a request to the end of its answer.",
    (*_ATTRIBUTES, "error_type"),
    DURATION,
    labelled=_with_error(_status),
)
FIRST_TOKEN = View(
    "gen_ai_server_time_to_first_token_seconds",
    "Time from the start of a request to the first event of its answer, if upstreams streamed it.",
    _ATTRIBUTES,
    _FIRST_TOKEN,
    labelled=_attributes,
)
PER_TOKEN = View(
    "gen_ai_server_time_per_output_token_seconds",
    "Time from the first to the last event of an answer, divided by the tokens of one choice after the first.",
    _ATTRIBUTES,
    _PER_TOKEN,
    labelled=_attributes,
)
CALL_DURATION = View(
    "gen_ai_client_operation_duration_seconds",
    "Time from the decision to make an upstream call to the end of the call.",
    (*_ATTRIBUTES, "error_type"),
    DURATION,
    labelled=_with_error(_outcome),
)
PER_CHUNK = View(
    "gen_ai_client_operation_time_per_output_chunk_seconds",
    "Time between two events of one upstream call.",
    _ATTRIBUTES,
    labelled=_attributes,
)
TOKEN_USAGE = View(
    "gen_ai_client_token_usage",
    "Tokens that upstreams computed for one request.",
    (*_ATTRIBUTES, "gen_ai_token_type"),
    _TOKENS,
    labelled=_used,
)

"""OpenTelemetry's names: which observations they tell, under which attributes, with which bounds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from nproxy.telemetry.metrics import Metrics

CALL = {"gen_ai_provider_name": "openai", "gen_ai_request_model": "m", "upstream": "u"}
CHAT, TEXT = {"gen_ai_operation_name": "chat", **CALL}, {"gen_ai_operation_name": "text_completion", **CALL}

DURATION = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
BOUNDS = {
    "gen_ai_server_request_duration_seconds": DURATION,
    "gen_ai_client_operation_duration_seconds": DURATION,
    "gen_ai_server_time_to_first_token_seconds": [
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    ],
    "gen_ai_server_time_per_output_token_seconds": [
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    ],
    "gen_ai_client_token_usage": [
        1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864,
    ],
}  # fmt: skip
"""As the conventions recommend them."""


@pytest.fixture
def metrics() -> Metrics:
    """With one observation of each kind for every endpoint, outcome, side and type."""
    one = Metrics(version="1", upstreams=["u"], models=["m"])
    for endpoint in ("chat/completions", "completions", "passthrough", "health", "other"):
        call = (endpoint, "u", "m")
        for code in ("200", "404", "499", "503"):
            one.requests(*call, "fanout", code).observe(0.5)
        for outcome in ("ok", "timeout", "cancelled"):
            one.legs(*call, outcome).observe(0.5)
        for side, tokens in (("client", 10), ("upstream", 70)):
            for kind in ("prompt", "completion"):
                one.tokens(*call, kind, side).observe(tokens)
        for instrument in (one.first_token, one.inter_token, one.per_token):
            instrument(*call).observe(0.5)
    return one


def counts(metrics: Metrics, name: str) -> list[Mapping[str, str]]:
    """The labels of a histogram's series, each of which holds one observation."""
    samples = metrics.report()[name].samples.items()
    assert {value for (sample, _), value in samples if sample.endswith("_count")} == {1.0}
    return [dict(labels) for (sample, labels), _ in samples if sample.endswith("_count")]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("gen_ai_server_request_duration_seconds", [{"error_type": code} for code in ("", "404", "499", "503")]),
        ("gen_ai_client_operation_duration_seconds", [{"error_type": how} for how in ("", "timeout", "cancelled")]),
        ("gen_ai_client_token_usage", [{"gen_ai_token_type": "input"}, {"gen_ai_token_type": "output"}]),
        ("gen_ai_server_time_to_first_token_seconds", [{}]),
        ("gen_ai_server_time_per_output_token_seconds", [{}]),
        ("gen_ai_client_operation_time_per_output_chunk_seconds", [{}]),
    ],
)
def test_operations_and_attributes(metrics: Metrics, name: str, more: list[dict[str, str]]) -> None:
    assert counts(metrics, name) == [{**operation, **attributes} for operation in (CHAT, TEXT) for attributes in more]


def test_token_usage_is_what_upstreams_computed(metrics: Metrics) -> None:
    samples = metrics.report()["gen_ai_client_token_usage"].samples
    assert {value for (sample, _), value in samples.items() if sample.endswith("_sum")} == {70.0}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_are_the_recommended_ones(metrics: Metrics, name: str) -> None:
    found = [dict(labels)["le"] for sample, labels in metrics.report()[name].samples if sample.endswith("_bucket")]
    assert [float(le) for le in found[: found.index("+Inf")]] == BOUNDS[name]


def test_time_per_output_chunk_has_the_bounds_of_its_instrument(metrics: Metrics) -> None:
    report = metrics.report()
    bounds = [
        {dict(labels)["le"] for sample, labels in report[name].samples if sample.endswith("_bucket")}
        for name in ("gen_ai_client_operation_time_per_output_chunk_seconds", "nproxy_inter_token_seconds")
    ]
    assert bounds[0] == bounds[1]

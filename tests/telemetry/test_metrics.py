"""The names of the metrics are a contract."""

from __future__ import annotations

from nproxy.telemetry.metrics import MOST_LISTED_MODELS, Metrics
from nproxy.telemetry.sums import exposition
from tests.telemetry.bounds import of_report, strays

NAMES = (
    "requests",
    "broken_answers",
    "choices",
    "legs",
    "leg_width",
    "retries",
    "inflight_requests",
    "inflight_choices",
    "inflight_legs",
    "legs_waiting",
    "time_to_first_token_seconds",
    "inter_token_seconds",
    "request_seconds",
    "sibling_skew_seconds",
    "tokens",
    "prompt_tokens_saved",
    "capability",
    "anomalies",
    "broken_answers",
    "replica_calls",
    "replica_call_seconds",
    "replica_errors",
    "replica_up",
    "replica_draining",
    "host_resolved",
    "replicas",
    "tls_certificate_expiry_timestamp_seconds",
    "engine_up",
    "breaker_open",
    "spans",
    "fallbacks",
    "event_loop_lag_seconds",
    "event_loop_tasks",
    "config_reload_success",
    "config_last_reload_success_timestamp_seconds",
    "config_reloads",
    "log_lines_dropped",
    "build_info",
    "engine_restarts",
    "resumes",
    "queue_choices",
    "queue_wait_seconds",
    "requests_refused",
    "shed",
    "key_requests",
    "key_tokens",
    "key_limited",
)
GENAI = {
    "gen_ai_server_request_duration_seconds",
    "gen_ai_server_time_to_first_token_seconds",
    "gen_ai_server_time_per_output_token_seconds",
    "gen_ai_client_operation_duration_seconds",
    "gen_ai_client_operation_time_per_output_chunk_seconds",
    "gen_ai_client_token_usage",
}


def metrics() -> Metrics:
    return Metrics(version="1.2.3", upstreams=["u"], models=["m"])


def test_names() -> None:
    assert {family.name for family in metrics().registry.collect()} == {f"nproxy_{name}" for name in NAMES} | GENAI


def test_two_processes_worth_of_metrics_do_not_meet() -> None:
    one, two = metrics(), metrics()
    one.inflight_choices.set(3)
    assert b"nproxy_inflight_choices 3.0" in exposition(one.report())
    assert b"nproxy_inflight_choices 0.0" in exposition(two.report())


def test_unknown_models_are_other() -> None:
    assert metrics().model_label("m", "u") == "m"
    assert metrics().model_label("x" * 1000, "u") == "other"


def test_names_of_another_configuration_come_to_those_that_are_there() -> None:
    labels = metrics()
    labels.inflight_legs("u").value += 1
    labels.name(["u", "v"], ["k"])
    assert [labels.model_label(name, "u") for name in ("m", "k", "x")] == ["m", "k", "other"]
    assert b'nproxy_inflight_legs{upstream="u"} 1.0' in exposition(labels.report())
    assert b'nproxy_inflight_legs{upstream="v"} 0.0' in exposition(labels.report())


def test_a_model_that_its_upstream_lists_has_its_name_for_good() -> None:
    labels = metrics()
    assert labels.model_label("x", "u", listed=True) == "x"
    assert labels.model_label("x", "u") == "x", "though the list cannot be read now"
    assert labels.model_label("x", "v") == "other", "another upstream does not list it"


def test_so_many_listed_models_have_their_names_and_further_ones_are_other() -> None:
    labels = metrics()
    names = [f"x{number}" for number in range(MOST_LISTED_MODELS + 1)]
    shown = [labels.model_label(name, "u", listed=True) for name in names]
    assert shown == [*names[:-1], "other"]
    assert labels.model_label(names[0], "u", listed=True) == names[0]
    assert labels.model_label(names[-1], "v", listed=True) == names[-1], "the bound is each upstream's own"


def test_without_opentelemetrys_names() -> None:
    quiet = Metrics(version="1.2.3", upstreams=["u"], models=["m"], gen_ai=False)
    quiet.requests("chat/completions", "u", "m", "native", "200").observe(0.3)
    quiet.per_token("chat/completions", "u", "m").observe(0.01)
    told = quiet.report()
    assert not GENAI & told.keys()
    assert told["nproxy_requests"] == _observed(metrics()).report()["nproxy_requests"]


def _observed(one: Metrics) -> Metrics:
    one.requests("chat/completions", "u", "m", "native", "200").observe(0.3)
    return one


def test_what_there_is_nothing_to_tell_of_has_no_series() -> None:
    one = metrics()
    assert not one.report()["nproxy_engine_up"].samples, "there is no engine, so none is down"
    one.engine_up.value = 0
    assert list(one.report()["nproxy_engine_up"].samples.values()) == [0]


def test_what_has_few_labels_begins_at_zero() -> None:
    one = metrics()
    one.name(["u", "v"], ["m"], [("u", "v")])
    one.begun("chat/completions", "u", "m")
    text = exposition(one.report())
    for line in (
        b'nproxy_requests_refused_total{reason="queue_full"} 0.0',
        b'nproxy_shed_total{reason="memory"} 0.0',
        b'nproxy_config_reloads_total{outcome="refused"} 0.0',
        b'nproxy_fallbacks_total{to="v",upstream="u"} 0.0',
        b'nproxy_broken_answers_total{endpoint="chat/completions",model="m",outcome="cut",upstream="u"} 0.0',
    ):
        assert line in text, line
    assert strays(of_report(one.report()), ("u", "v", "m"), ()) == []

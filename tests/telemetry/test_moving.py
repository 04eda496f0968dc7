"""Every metric moves: one row for each name, over one story that makes all of them move (`moving.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs.generate.metrics import told
from tests.telemetry.bounds import strays
from tests.telemetry.moving import Scrape, play

ROOT = Path(__file__).resolve().parents[2]

ELSEWHERE = {
    "nproxy_workers": "tests/real/test_workers.py",
    "nproxy_worker_restarts": "tests/real/test_workers.py",
    "nproxy_engine_restarts": "tests/cli/test_herald.py",
    "nproxy_tls_certificate_expiry_timestamp_seconds": "tests/gateway/test_tls.py",
    "nproxy_spans": "tests/gateway/test_collectors.py",
    "nproxy_host_resolved": "tests/gateway/test_dns.py",
    "nproxy_legs_waiting": "tests/conformance/test_l_m_n_limits.py",
}
"""Metrics of processes that die, of a collector, a resolver and an upstream's limit, and the tests that have these."""


@dataclass(frozen=True)
class Grows:
    """Counted more at the end than at the beginning."""

    sample: str
    labels: str = ""

    def check(self, story: dict[str, Scrape]) -> None:
        assert value(story["rest"], self) > value(story["before"], self)


@dataclass(frozen=True)
class Returns:
    """Otherwise at this moment, and at rest what it was, which is `rest`."""

    sample: str
    labels: str = ""
    moment: str = "held"
    rest: float = 0.0

    def check(self, story: dict[str, Scrape]) -> None:
        assert value(story[self.moment], self) != self.rest
        assert value(story["rest"], self) == self.rest


@dataclass(frozen=True)
class Is:
    """Has this value at rest, whatever it was."""

    sample: str
    labels: str
    least: float
    most: float = float("inf")

    def check(self, story: dict[str, Scrape]) -> None:
        assert self.least <= value(story["rest"], self) <= self.most


@dataclass(frozen=True)
class Moves:
    """Otherwise at this moment than at the beginning."""

    sample: str
    labels: str
    moment: str

    def check(self, story: dict[str, Scrape]) -> None:
        assert value(story[self.moment], self) != value(story["before"], self)


Row = Grows | Returns | Is | Moves

ENGINE, ODD = "upstream=engine,model=tiny", "upstream=odd,model=fake-model"
CHAT_CALL = "gen_ai_operation_name=chat,gen_ai_provider_name=openai,gen_ai_request_model=tiny,upstream=engine"
TEXT_CALL = CHAT_CALL.replace("=chat", "=text_completion")

ROWS: tuple[Row, ...] = (
    Is("nproxy_replicas", "upstream=odd", 1, 1),
    Is("nproxy_engine_up", "", 1, 1),
    Grows("nproxy_requests_total", f"endpoint=chat/completions,{ENGINE},mode=relay,code=200"),
    Grows("nproxy_request_seconds_count", f"endpoint=completions,{ENGINE}"),
    Grows("nproxy_broken_answers_total", f"endpoint=chat/completions,{ODD},outcome=cut"),
    Grows("nproxy_choices_total", f"{ENGINE},finish_reason=length"),
    Grows("nproxy_legs_total", "upstream=odd,outcome=ok"),
    Grows("nproxy_leg_width_count"),
    Grows("nproxy_retries_total", "upstream=odd,reason=status"),
    Grows("nproxy_resumes_total", "upstream=odd,how=replay,outcome=failed"),
    Returns("nproxy_inflight_requests"),
    Returns("nproxy_inflight_choices"),
    Returns("nproxy_inflight_legs", "upstream=odd"),
    Returns("nproxy_queue_choices"),
    Grows("nproxy_queue_wait_seconds_count", "outcome=admitted"),
    Grows("nproxy_time_to_first_token_seconds_count", ENGINE),
    Grows("nproxy_inter_token_seconds_count", ENGINE),
    Grows("nproxy_sibling_skew_seconds_count", ENGINE),
    Grows("nproxy_tokens_total", f"{ENGINE},type=completion,side=client"),
    Grows("nproxy_tokens_total", f"{ENGINE},type=prompt,side=upstream"),
    Grows("nproxy_prompt_tokens_saved_total", ENGINE),
    Grows("nproxy_anomalies_total", "upstream=odd,kind=short_answer"),
    Is("nproxy_capability", f"{ODD},name=n", 1, 1),
    Grows("nproxy_replica_calls_total", "upstream=odd,outcome=connect"),
    Grows("nproxy_replica_call_seconds_total", "upstream=odd"),
    Grows("nproxy_replica_errors_total", "upstream=odd,code=503,api_key=other"),
    Returns("nproxy_replica_up", "upstream=odd", moment="down", rest=1),
    Returns("nproxy_replica_draining", "upstream=odd", moment="drained"),
    Returns("nproxy_breaker_open", "upstream=odd", moment="down"),
    Grows("nproxy_fallbacks_total", "upstream=odd,to=spare"),
    Grows("nproxy_requests_refused_total", "reason=requests"),
    Grows("nproxy_shed_total", "reason=memory"),
    Grows("nproxy_key_requests_total", "key=bob"),
    Grows("nproxy_key_tokens_total", "key=ann,type=completion"),
    Grows("nproxy_key_limited_total", "key=bob,what=requests"),
    Is("nproxy_build_info", "", 1, 1),
    Moves("nproxy_event_loop_lag_seconds", "", "late"),
    Moves("nproxy_event_loop_tasks", "", "held"),
    Returns("nproxy_config_reload_success", moment="bad settings", rest=1),
    Grows("nproxy_config_last_reload_success_timestamp_seconds"),
    Grows("nproxy_config_reloads_total", "outcome=refused"),
    Moves("nproxy_log_lines_dropped_total", "", "deaf"),
    Is("nproxy_engine_info", "device=cpu", 1, 1),
    Returns("nproxy_engine_blocks", "state=used"),
    Moves("nproxy_engine_blocks", "state=cached", "rest"),
    Moves("nproxy_engine_blocks", "state=free", "held"),
    Returns("nproxy_engine_blocks_shared"),
    Grows("nproxy_engine_blocks_peak"),
    Returns("nproxy_engine_sequences", "state=running"),
    Is("nproxy_engine_sequences", "state=waiting", 0, 0),
    Grows("nproxy_engine_forks_total"),
    Grows("nproxy_engine_block_copies_total"),
    Grows("nproxy_engine_preemptions_total", "reason=blocks"),
    Grows("nproxy_engine_prefix_cache_tokens_total", "result=hit"),
    Grows("nproxy_engine_prefix_cache_tokens_total", "result=miss"),
    Grows("nproxy_engine_steps_total"),
    Grows("nproxy_engine_step_seconds_count"),
    Grows("nproxy_engine_batch_sequences_sum"),
    Grows("nproxy_engine_tokens_total", "type=completion"),
    Grows("nproxy_engine_tokens_total", "type=prompt"),
    Grows("nproxy_engine_kv_read_bytes_total"),
    Grows("nproxy_engine_prefix_kv_read_bytes_total"),
    Grows("nproxy_engine_kv_unshared_bytes_total"),
    Grows("gen_ai_server_request_duration_seconds_count", f"{CHAT_CALL},error_type="),
    Grows("gen_ai_server_time_to_first_token_seconds_count", TEXT_CALL),
    Grows("gen_ai_server_time_per_output_token_seconds_count", TEXT_CALL),
    Grows("gen_ai_client_operation_duration_seconds_count", f"{CHAT_CALL},error_type="),
    Grows("gen_ai_client_operation_time_per_output_chunk_seconds_count", TEXT_CALL),
    Grows("gen_ai_client_token_usage_sum", f"{CHAT_CALL},gen_ai_token_type=output"),
)


def value(scrape: Scrape, row: Row) -> float:
    """The sum of the samples with this name and, among others, these labels."""
    labels = {tuple(pair.split("=")) for pair in row.labels.split(",") if pair}
    return sum(found for (sample, having), found in scrape.items() if sample == row.sample and labels <= having)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scrape]:
    return asyncio.run(play(tmp_path_factory.mktemp("moving")))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.sample}-{row.labels}".removesuffix("-"))
def test_it_moves(story: dict[str, Scrape], row: Row) -> None:
    row.check(story)


def test_labels_have_the_values_that_the_page_gives(story: dict[str, Scrape]) -> None:
    """Of replicas, the odd one and the spare have addresses of their own in each test, and the engine a socket."""
    metrics = {sample: name for name in told() for sample in _samples(name)}
    labelled = [(metrics[sample], labels) for scrape in story.values() for sample, labels in scrape]
    found = strays(labelled, ("engine", "odd", "spare", "tiny", "fake-model", "ann", "bob"), ())
    assert {(metric, label) for metric, label, _ in found} == {
        (f"nproxy_{name}", "replica")
        for name in (
            "replica_up",
            "replica_draining",
            "breaker_open",
            "replica_calls",
            "replica_call_seconds",
            "replica_errors",
        )
    }
    assert len({value for _, _, value in found}) == 3


def _samples(name: str) -> Iterable[str]:
    """Names that samples of a metric may have."""
    return (name, *(f"{name}_{end}" for end in ("total", "bucket", "count", "sum")))


def test_no_metric_is_without_a_row() -> None:
    known = told()
    samples = {row.sample for row in ROWS}
    moved = {name for name in known if samples.intersection(_samples(name))}
    assert known.keys() - moved == ELSEWHERE.keys()
    for name, file in ELSEWHERE.items():
        assert name in (ROOT / file).read_text()

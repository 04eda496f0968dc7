"""The engine's metrics carry the core's counts under the names that dashboards rely on."""

from __future__ import annotations

from dataclasses import fields, replace

from prometheus_client.parser import text_string_to_metric_families

from engine.messages import Ready, Stats, StepDone
from engine.server.metrics import Metrics

READY = Ready(
    vocab_size=10,
    max_model_len=20,
    blocks=64,
    block_size=16,
    kv_bytes_per_token=1,
    eos_tokens=frozenset(),
    device="cpu",
    dtype="float32",
)
STATS = Stats(**{field.name: number for number, field in enumerate(fields(Stats), start=1)})


def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Value by name and label value."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name.removeprefix("nproxy_engine_"), ",".join(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_before_the_first_step_all_blocks_are_free() -> None:
    found = samples(Metrics(READY))
    assert (found["blocks", "free"], found["blocks", "used"]) == (64, 0)


def test_it_says_what_the_model_runs_by() -> None:
    ready = replace(READY, dtype="bfloat16", kernels="native", quantization="int8")
    assert samples(Metrics(ready))["info", "cpu,bfloat16,native,int8"] == 1


def test_no_series_says_when_it_was_begun() -> None:
    assert b"_created" not in Metrics(READY).exposition()


def test_every_count_of_the_core_is_there() -> None:
    metrics = Metrics(READY)
    metrics.observe(StepDone(tokens=(), failed=(), seconds=0.02, batch_sequences=3, stats=STATS, taken=1))
    found = samples(metrics)
    by_name = {
        "blocks_used": ("blocks", "used"),
        "blocks_cached": ("blocks", "cached"),
        "blocks_free": ("blocks", "free"),
        "blocks_shared": ("blocks_shared", ""),
        "peak_blocks": ("blocks_peak", ""),
        "running": ("sequences", "running"),
        "waiting": ("sequences", "waiting"),
        "forks": ("forks_total", ""),
        "block_copies": ("block_copies_total", ""),
        "gave_way": ("preemptions_total", "fairness"),
        "steps": ("steps_total", ""),
        "prompt_tokens_computed": ("tokens_total", "prompt"),
        "tokens_drawn": ("tokens_total", "completion"),
        "kv_bytes_read": ("kv_read_bytes_total", ""),
        "prefix_kv_bytes_read": ("prefix_kv_read_bytes_total", ""),
        "kv_bytes_unshared": ("kv_unshared_bytes_total", ""),
        "prefix_cache_hits": ("prefix_cache_tokens_total", "hit"),
        "prefix_cache_misses": ("prefix_cache_tokens_total", "miss"),
    }
    assert by_name.keys() == {field.name for field in fields(Stats)} - {"preemptions"}
    for field, key in by_name.items():
        assert found[key] == getattr(STATS, field), field
    assert found["preemptions_total", "blocks"] == STATS.preemptions - STATS.gave_way
    assert (found["step_seconds_count", ""], found["step_seconds_sum", ""]) == (1, 0.02)
    assert found["batch_sequences_sum", ""] == 3


def test_counts_are_set_and_not_added_up() -> None:
    metrics = Metrics(READY)
    for _ in range(3):
        metrics.observe(StepDone(tokens=(), failed=(), seconds=0.02, batch_sequences=3, stats=STATS, taken=1))
    assert samples(metrics)["forks_total", ""] == STATS.forks


def test_a_step_that_ran_nothing_brings_counts_only() -> None:
    metrics = Metrics(READY)
    metrics.observe(StepDone(tokens=(), failed=(), seconds=0.0, batch_sequences=0, stats=STATS, taken=1))
    found = samples(metrics)
    assert found["step_seconds_count", ""] == 0
    assert found["blocks_shared", ""] == STATS.blocks_shared

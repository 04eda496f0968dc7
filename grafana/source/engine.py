"""The built-in engine: its steps, its KV cache, and what choices share."""

from __future__ import annotations

from grafana.source.kit import (
    BYTES,
    COUNT,
    IDLE,
    PER_SECOND,
    SECONDS,
    SHARE,
    TOKENS,
    Row,
    buckets,
    built,
    lines,
    listing,
    number,
    rising,
)
from grafana.source.promql import GATEWAY, MODEL, mean, over, quantile, rate, ratio, series
from grafana.source.queries import Query, gauges, quantiles, rates

_STEP, _BATCH = "nproxy_engine_step_seconds", "nproxy_engine_batch_sequences"
_BLOCKS = "nproxy_engine_blocks"
_CACHED = "nproxy_engine_prefix_cache_tokens_total"
_OURS = MODEL, 'upstream="engine"'
_USED, _HIT = 'state="used"', 'result="hit"'
_FULL = ratio(over("sum", series(_BLOCKS, GATEWAY, _USED)), over("sum", series(_BLOCKS)))
_HITS = ratio(rate(_CACHED, GATEWAY, _HIT), rate(_CACHED))
_READ = rate("nproxy_engine_kv_read_bytes_total")
_UNSHARED = rate("nproxy_engine_kv_unshared_bytes_total")

_NOW = Row(
    "Now",
    [
        number(
            "KV cache in use",
            SHARE,
            "Share of the KV blocks that running choices hold. If it is close to 1 with preemptions: use more memory "
            "(kv_fraction, num_blocks), shorter answers, or fewer choices at once.",
            _FULL,
            thresholds=rising(0.8, 0.95),
        ),
        number(
            "Running choices",
            COUNT,
            "Sequences in the batch. At max_sequences, other sequences wait even if the cache has free blocks.",
            over("sum", series("nproxy_engine_sequences", GATEWAY, 'state="running"')),
        ),
        number(
            "Waiting choices",
            COUNT,
            "Sequences that wait for KV blocks or for a place in the batch. If they wait for long, the engine has too "
            "few of one of them.",
            over("sum", series("nproxy_engine_sequences", GATEWAY, 'state="waiting"')),
            thresholds=rising(1, 64),
        ),
        number(
            "Prompt tokens from the cache",
            SHARE,
            "Share of all prompt tokens. If it is zero although prompts have the same prefix, prefix_cache is off, "
            "keys differ, or the cache is too small.",
            _HITS,
            none=IDLE,
        ),
        number(
            "Step, p95",
            SECONDS,
            "Duration of a step, for 19 of 20 steps: the time between two tokens of a choice.",
            quantile(0.95, _STEP),
            none=IDLE,
        ),
        number(
            "KV reads saved",
            SHARE,
            "Share of keys and values that attention did not have to read because choices share their prompt. It grows "
            "with n and the length of the prompt.",
            f"1 - {ratio(_READ, _UNSHARED)}",
            none=IDLE,
        ),
    ],
)

_STEPS = Row(
    "Steps",
    [
        buckets(
            "Step time",
            SECONDS,
            "Two bands are decode steps, and steps that also compute prompts. Outliers: the machine is shared, or "
            "swaps memory.",
            rate(f"{_STEP}_bucket", GATEWAY, by=("le",)),
        ),
        lines(
            "Sequences in a step",
            COUNT,
            "How full batches are. With more sequences, a step takes longer, but each token costs less.",
            Query(mean(_BATCH), "mean"),
            Query(quantile(0.95, _BATCH), "p95"),
        ),
        lines(
            "Tokens computed",
            TOKENS,
            "prompt: prefilled; completion: sampled. If completion falls while prompt rises, long prompts slow "
            "decoding down.",
            rates("nproxy_engine_tokens_total", by=("type",)),
        ),
        lines(
            "Step time, quantiles",
            SECONDS,
            "If only p99 rises, prompts are computed in between. If all rise, batches are larger, or the machine has "
            "less capacity than before.",
            *quantiles(_STEP),
        ),
        lines(
            "Steps",
            PER_SECOND,
            "Steps per second. If it is zero while sequences run, the engine hangs, and is restarted after "
            "stall_seconds.",
            rates("nproxy_engine_steps_total", by=("instance",)),
        ),
        lines(
            "Sequences",
            COUNT,
            "Running and waiting sequences. If sequences wait for minutes, an alert fires only if the cache is full "
            "too (NproxyKvCacheFull).",
            gauges("sum", "nproxy_engine_sequences", by=("state",)),
            stacked=True,
        ),
    ],
)

_CACHE = Row(
    "KV cache",
    [
        lines(
            "Blocks",
            COUNT,
            "used: held by sequences; cached: kept for prompts with the same prefix, and reused when needed; free: "
            "neither. If cached is always zero, the cache is too small to help.",
            gauges("sum", _BLOCKS, by=("state",)),
            stacked=True,
        ),
        lines(
            "Blocks shared, and the peak",
            COUNT,
            "shared: held by several sequences at once, which forking saves. peak: the largest number in use since the "
            "start; if it is close to all blocks, memory is short.",
            Query(over("sum", series("nproxy_engine_blocks_shared")), "shared"),
            Query(over("sum", series("nproxy_engine_blocks_peak")), "peak"),
        ),
        lines(
            "Preemptions",
            PER_SECOND,
            "Sequences that are put back and computed again later. blocks: no KV blocks were free; if it is not zero "
            "for long, see KV cache in use. fairness: a narrower request had waited long enough behind a wide one.",
            rates("nproxy_engine_preemptions_total", by=("instance", "reason")),
            thresholds=rising(0.01, 0.1),
        ),
        lines(
            "Forks and copies",
            PER_SECOND,
            "forks: choices that started from a prompt already computed; copies: KV blocks copied on write. About one "
            "copy per fork is normal, many more are not.",
            Query(rate("nproxy_engine_forks_total"), "forks"),
            Query(rate("nproxy_engine_block_copies_total"), "copies"),
        ),
        lines(
            "Prompt tokens, cached and computed",
            TOKENS,
            "hit: their keys and values were cached; miss: computed. If there are few hits although prompts have the "
            "same prefix, see cache_salt, API keys and num_blocks.",
            rates(_CACHED, by=("result",)),
            stacked=True,
        ),
        lines(
            "Keys and values read",
            BYTES,
            "Bytes per second: all that attention reads, the part of shared prompts, and what it would read if every "
            "choice read its whole context separately.",
            Query(_READ, "read"),
            Query(rate("nproxy_engine_prefix_kv_read_bytes_total"), "of shared prompts"),
            Query(_UNSHARED, "without sharing"),
        ),
        listing(
            "Engines",
            "none",
            "How each engine runs, also if `auto` was set. Kernels `torch` on a CPU mean that no C compiler was found, "
            "and a step takes several times as long.",
            series("nproxy_engine_info"),
            "instance",
            "device",
            "dtype",
            "kernels",
            "quantization",
        ),
    ],
)

_SEEN = Row(
    "As clients see it",
    [
        lines(
            "Time to first token of the engine",
            SECONDS,
            "Of the upstream `engine`, by model. If it is above the step times, requests wait in the gateway's queue "
            "or the engine's.",
            *quantiles("nproxy_time_to_first_token_seconds", *_OURS, by=("model",), shares=(0.5, 0.95)),
            width=12,
        ),
        lines(
            "Between events of the engine",
            SECONDS,
            "Of the upstream `engine`, by model. It should be close to the step time; if it is much longer, the "
            "gateway or the machine is overloaded.",
            *quantiles("nproxy_inter_token_seconds", *_OURS, by=("model",), shares=(0.5, 0.95)),
            width=12,
        ),
    ],
)

DASHBOARD = built(
    "nproxy-engine",
    "nproxy / Engine and KV cache",
    "The built-in engine, as part of a gateway or separate: its steps, its KV cache, and what choices share.",
    [_NOW, _STEPS, _CACHE, _SEEN],
)

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
            "Blocks that running choices hold. Near 1 with preemptions: more memory (kv_fraction, num_blocks), "
            "shorter answers, or fewer choices at once.",
            _FULL,
            thresholds=rising(0.8, 0.95),
        ),
        number(
            "Running choices",
            COUNT,
            "Sequences in the batch. At max_sequences others wait, however empty the cache is.",
            over("sum", series("nproxy_engine_sequences", GATEWAY, 'state="running"')),
        ),
        number(
            "Waiting choices",
            COUNT,
            "Sequences that wait for blocks or a place in the batch. For long: the engine has too little of one of "
            "them.",
            over("sum", series("nproxy_engine_sequences", GATEWAY, 'state="waiting"')),
            thresholds=rising(1, 64),
        ),
        number(
            "Prompt tokens from the cache",
            SHARE,
            "Of prompt tokens that were asked for. Zero where prompts begin alike: prefix_cache is off, keys differ, "
            "or the cache is too small to keep them.",
            _HITS,
            none=IDLE,
        ),
        number(
            "Step, p95",
            SECONDS,
            "How long a step takes, for 19 of 20: the time between two tokens of a choice.",
            quantile(0.95, _STEP),
            none=IDLE,
        ),
        number(
            "Reads spared",
            SHARE,
            "Keys and values that attention did not read because choices share their prompt. It grows with n and the "
            "prompt's length.",
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
            "Two bands are decoding steps and those that also compute prompts. Far-off ones: the machine is shared, "
            "or swaps.",
            rate(f"{_STEP}_bucket", GATEWAY, by=("le",)),
        ),
        lines(
            "Sequences in a step",
            COUNT,
            "How full batches are. Steps get dearer with it, tokens cheaper.",
            Query(mean(_BATCH), "mean"),
            Query(quantile(0.95, _BATCH), "p95"),
        ),
        lines(
            "Tokens computed",
            TOKENS,
            "prompt: prefilled; completion: drawn. Completion falling while prompt rises: long prompts crowd out "
            "decoding.",
            rates("nproxy_engine_tokens_total", by=("type",)),
        ),
        lines(
            "Step time, quantiles",
            SECONDS,
            "p99 alone: prompts in between. All of them: bigger batches, or less of the machine than before.",
            *quantiles(_STEP),
        ),
        lines(
            "Steps",
            PER_SECOND,
            "Steps a second. Zero while sequences run: the engine hangs, and is started again after stall_seconds.",
            rates("nproxy_engine_steps_total", by=("instance",)),
        ),
        lines(
            "Sequences",
            COUNT,
            "Running and waiting. Waiting above zero for minutes is an alert only with a full cache "
            "(NproxyKvCacheFull).",
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
            "used: held by sequences; cached: kept for prompts that begin alike, given up when needed; free. Cached "
            "at zero all the time: the cache is too small to help.",
            gauges("sum", _BLOCKS, by=("state",)),
            stacked=True,
        ),
        lines(
            "Blocks shared, and the peak",
            COUNT,
            "shared: held by several sequences at once, which is what forking saves. peak: the most in use since the "
            "start; near all of them, memory is short.",
            Query(over("sum", series("nproxy_engine_blocks_shared")), "shared"),
            Query(over("sum", series("nproxy_engine_blocks_peak")), "peak"),
        ),
        lines(
            "Preemptions",
            PER_SECOND,
            "Sequences put back because blocks ran out; their prompts are computed again. Not zero for long: see KV "
            "cache in use.",
            rates("nproxy_engine_preemptions_total", by=("instance",)),
            thresholds=rising(0.01, 0.1),
        ),
        lines(
            "Forks and copies",
            PER_SECOND,
            "forks: choices that took over a computed prompt; copies: blocks copied since two sequences wrote into "
            "one. About a copy per fork is right, many more are not.",
            Query(rate("nproxy_engine_forks_total"), "forks"),
            Query(rate("nproxy_engine_block_copies_total"), "copies"),
        ),
        lines(
            "Prompt tokens by the cache",
            TOKENS,
            "hit: their keys and values were there; miss: computed. Few hits where prompts begin alike: see "
            "cache_salt, API keys and num_blocks.",
            rates(_CACHED, by=("result",)),
            stacked=True,
        ),
        lines(
            "Keys and values read",
            BYTES,
            "A second: as they are read, of these the shared prompts, and what it would be if every choice read its "
            "whole past by itself.",
            Query(_READ, "read"),
            Query(rate("nproxy_engine_prefix_kv_read_bytes_total"), "of shared prompts"),
            Query(_UNSHARED, "without sharing"),
        ),
        listing(
            "Engines",
            "none",
            "What each runs by, where `auto` was asked for too. Kernels `torch` on a CPU: there was no C compiler, and "
            "a step takes several times as long.",
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
            "Of the upstream `engine`, by model. Above the step times: requests wait, in the gateway's queue or the "
            "engine's.",
            *quantiles("nproxy_time_to_first_token_seconds", *_OURS, by=("model",), shares=(0.5, 0.95)),
            width=12,
        ),
        lines(
            "Between events of the engine",
            SECONDS,
            "Of the upstream `engine`, by model. It should be the step time; much more is the gateway's or the "
            "machine's load.",
            *quantiles("nproxy_inter_token_seconds", *_OURS, by=("model",), shares=(0.5, 0.95)),
            width=12,
        ),
    ],
)

DASHBOARD = built(
    "nproxy-engine",
    "nproxy / Engine and KV cache",
    "The built-in engine, as part of a gateway or by itself: its steps, its KV cache, and what choices share.",
    [_NOW, _STEPS, _CACHE, _SEEN],
)

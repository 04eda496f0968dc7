"""What n saves: prompt tokens computed once instead of n times; and what retries cost."""

from __future__ import annotations

from grafana.source.kit import COUNT, IDLE, MONEY, SHARE, TOKENS, Row, bars, built, lines, number, price, rising
from grafana.source.promql import GATEWAY, MODEL, grown, or_zero, rate, ratio
from grafana.source.queries import Query, rates

_TOKENS, _SAVED = "nproxy_tokens_total", "nproxy_prompt_tokens_saved_total"
_TOLD, _SPENT = 'side="client"', 'side="upstream"'
_PROMPT, _COMPLETION = 'type="prompt"', 'type="completion"'
_READ, _COMPUTED = (grown(_TOKENS, MODEL, _COMPLETION, side) for side in (_TOLD, _SPENT))
_BY = ("upstream", "model")
_UPSTREAM = ("upstream",)
_PROMPTS_COMPUTED = rate(_TOKENS, MODEL, _PROMPT, _SPENT, by=_UPSTREAM)


def _saved_share(count: str, spent: str) -> str:
    return ratio(count, f"({count} + {spent})")


_NOW = Row(
    "In the selected time range",
    [
        number(
            "Prompt tokens saved",
            COUNT,
            "Additional prompt tokens that one call per choice would have used. If it is zero although n is used, the "
            "upstream is in fan-out: see its capability n on Upstreams.",
            or_zero(grown(_SAVED, MODEL), grown(_TOKENS, MODEL)),
        ),
        number(
            "Share of prompt tokens saved",
            SHARE,
            "Saved prompt tokens, divided by saved plus computed ones. With native n everywhere it is 1 - 1/n.",
            _saved_share(or_zero(grown(_SAVED, MODEL), grown(_TOKENS, MODEL)), grown(_TOKENS, MODEL, _PROMPT, _SPENT)),
            none=IDLE,
        ),
        number(
            "Money saved",
            MONEY,
            "Saved prompt tokens at the price above (per million). Set the price to what the upstream charges, or "
            "costs you.",
            f"{or_zero(grown(_SAVED, MODEL), grown(_TOKENS, MODEL))} / 1e6 * $prompt_price",
        ),
        number(
            "Money spent",
            MONEY,
            "Prompt and completion tokens that upstreams computed, at the prices above.",
            f"({grown(_TOKENS, MODEL, _PROMPT, _SPENT)} * $prompt_price"
            f" + {grown(_TOKENS, MODEL, _COMPLETION, _SPENT)} * $completion_price) / 1e6",
        ),
        number(
            "Wasted completion tokens",
            SHARE,
            "Share computed by upstreams, but not for an answer that a client got whole: retries, resumes, best_of, "
            "surplus choices, and streams that were left or broke off. Above 10 %, see the status codes on Overview, "
            "and retries and anomalies on Choices and fan-out.",
            f"clamp_min(1 - {ratio(_READ, _COMPUTED)}, 0)",
            none=IDLE,
            thresholds=rising(0.1, 0.3),
        ),
        number(
            "From the engine's prefix cache",
            COUNT,
            "Prompt tokens that the built-in engine had computed before, for the same caller. They are saved in "
            "addition to what n saved.",
            grown("nproxy_engine_prefix_cache_tokens_total", GATEWAY, 'result="hit"'),
            none="no engine",
        ),
    ],
)

_PROMPTS = Row(
    "Prompt tokens",
    [
        lines(
            "Reported, computed, saved",
            TOKENS,
            "reported: counted once per request, as clients are billed; computed: by upstreams; saved: what one call "
            "per choice would add. If computed is far above reported, there is fan-out.",
            Query(rate(_TOKENS, MODEL, _PROMPT, _TOLD), "reported"),
            Query(rate(_TOKENS, MODEL, _PROMPT, _SPENT), "computed"),
            Query(rate(_SAVED, MODEL), "saved"),
        ),
        lines(
            "Saved, by upstream and model",
            TOKENS,
            "Saved prompt tokens. A model that is missing here is served by fan-out, or only one choice at a time is "
            "requested.",
            rates(_SAVED, MODEL, by=_BY),
            stacked=True,
        ),
        lines(
            "Share saved, by upstream",
            SHARE,
            "Saved prompt tokens, divided by saved plus computed ones. An upstream below 1 - 1/n serves n by several "
            "calls: see its capability n.",
            Query(
                _saved_share(or_zero(rate(_SAVED, MODEL, by=_UPSTREAM), _PROMPTS_COMPUTED), _PROMPTS_COMPUTED),
                "{{upstream}}",
            ),
            top=1,
        ),
    ],
)

_COMPLETIONS = Row(
    "Completion tokens",
    [
        lines(
            "Reported and computed",
            TOKENS,
            "The difference is the cost of retries, resumes and best_of. If it grows, see the retries on Choices and "
            "fan-out.",
            Query(rate(_TOKENS, MODEL, _COMPLETION, _TOLD), "reported"),
            Query(rate(_TOKENS, MODEL, _COMPLETION, _SPENT), "computed"),
        ),
        lines(
            "Computed, by upstream and model",
            TOKENS,
            "Where tokens are computed. If an upstream is busy that should be idle, see the fallbacks on Upstreams.",
            rates(_TOKENS, MODEL, _COMPLETION, _SPENT, by=_BY),
            stacked=True,
        ),
        bars(
            "Tokens by key",
            COUNT,
            "Tokens reported in the selected time range, by the names in the keys file; `other` if there is none.",
            Query(grown("nproxy_key_tokens_total", GATEWAY, by=("key", "type")), "{{key}} {{type}}"),
        ),
    ],
)

_ENGINE = Row(
    "The built-in engine",
    [
        lines(
            "Prompt tokens from the prefix cache",
            TOKENS,
            "Prompt tokens that were in the prefix cache, beside those that were computed. The cache keeps the blocks "
            "of finished requests until they are needed: more blocks, more hits.",
            Query(rate("nproxy_engine_prefix_cache_tokens_total", GATEWAY, 'result="hit"'), "from the cache"),
            Query(rate("nproxy_engine_tokens_total", GATEWAY, 'type="prompt"'), "computed"),
            width=12,
        ),
        lines(
            "Reduction of bytes read by attention",
            COUNT,
            "Bytes that would be read without sharing, divided by the bytes read. 1: nothing is shared; n is the "
            "maximum.",
            Query(
                ratio(rate("nproxy_engine_kv_unshared_bytes_total"), rate("nproxy_engine_kv_read_bytes_total")),
                "fewer",
            ),
            width=12,
        ),
    ],
)

DASHBOARD = built(
    "nproxy-cost",
    "nproxy / Cost: what n saved",
    "Prompt tokens that were computed once instead of n times, and the cost of retries.",
    [_NOW, _PROMPTS, _COMPLETIONS, _ENGINE],
    price("prompt_price", "Price of a million prompt tokens", "0.50"),
    price("completion_price", "Price of a million completion tokens", "1.50"),
)

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


def _saved_share(count: str, spent: str) -> str:
    return ratio(count, f"({count} + {spent})")


_NOW = Row(
    "In the time shown",
    [
        number(
            "Prompt tokens saved",
            COUNT,
            "Those that a call for each choice would have cost besides. Zero where n is used: the upstream is in "
            "fan-out; see its capability n on Upstreams.",
            or_zero(grown(_SAVED, MODEL), grown(_TOKENS, MODEL)),
        ),
        number(
            "Of the prompt tokens otherwise needed",
            SHARE,
            "Saved, divided by saved and computed. With native n everywhere it is 1 - 1/n.",
            _saved_share(or_zero(grown(_SAVED, MODEL), grown(_TOKENS, MODEL)), grown(_TOKENS, MODEL, _PROMPT, _SPENT)),
            none=IDLE,
        ),
        number(
            "Money saved",
            MONEY,
            "Saved prompt tokens at the price above (per million). Set it to what the upstream charges, or costs you.",
            f"{or_zero(grown(_SAVED, MODEL), grown(_TOKENS, MODEL))} / 1e6 * $prompt_price",
        ),
        number(
            "Money spent",
            MONEY,
            "What upstreams computed, prompts and completions, at the prices above.",
            f"({grown(_TOKENS, MODEL, _PROMPT, _SPENT)} * $prompt_price"
            f" + {grown(_TOKENS, MODEL, _COMPLETION, _SPENT)} * $completion_price) / 1e6",
        ),
        number(
            "Completion tokens that nobody read",
            SHARE,
            "Computed by upstreams and told to no client: retries, resumes, best_of, choices in excess. Above a "
            "tenth: see retries and oddities on Choices and fan-out.",
            f"clamp_min(1 - {ratio(_READ, _COMPUTED)}, 0)",
            none=IDLE,
            thresholds=rising(0.05, 0.1),
        ),
        number(
            "From the engine's prefix cache",
            COUNT,
            "Prompt tokens that the built-in engine had computed before, for this caller. They come on top of what n "
            "saved.",
            grown("nproxy_engine_prefix_cache_tokens_total", GATEWAY, 'result="hit"'),
            none="no engine",
        ),
    ],
)

_PROMPTS = Row(
    "Prompt tokens",
    [
        lines(
            "Told, computed, saved",
            TOKENS,
            "told: counted once per request, as clients are billed; computed: by upstreams; saved: what a call for "
            "each choice would add. Computed far above told: fan-out.",
            Query(rate(_TOKENS, MODEL, _PROMPT, _TOLD), "told"),
            Query(rate(_TOKENS, MODEL, _PROMPT, _SPENT), "computed"),
            Query(rate(_SAVED, MODEL), "saved"),
        ),
        lines(
            "Saved, by upstream and model",
            TOKENS,
            "Who saves. A model that is missing here is served by fan-out, or asked for one choice at a time.",
            rates(_SAVED, MODEL, by=_BY),
            stacked=True,
        ),
        lines(
            "Share saved, by upstream",
            SHARE,
            "Saved, divided by saved and computed. An upstream below 1 - 1/n serves n by several calls: see its "
            "capability n.",
            Query(
                _saved_share(
                    rate(_SAVED, MODEL, by=("upstream",)), rate(_TOKENS, MODEL, _PROMPT, _SPENT, by=("upstream",))
                ),
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
            "Told and computed",
            TOKENS,
            "The distance is what retries, resumes and best_of cost. Growing: see what is called again on Choices and "
            "fan-out.",
            Query(rate(_TOKENS, MODEL, _COMPLETION, _TOLD), "told"),
            Query(rate(_TOKENS, MODEL, _COMPLETION, _SPENT), "computed"),
        ),
        lines(
            "Computed, by upstream and model",
            TOKENS,
            "Where the work is done. An upstream that should be idle and is not: fallbacks on Upstreams.",
            rates(_TOKENS, MODEL, _COMPLETION, _SPENT, by=_BY),
            stacked=True,
        ),
        bars(
            "Who is served",
            COUNT,
            "Tokens told in the time shown, by the names of the keys file; `other` where there is none.",
            Query(grown("nproxy_key_tokens_total", GATEWAY, by=("key", "type")), "{{key}} {{type}}"),
        ),
    ],
)

_ENGINE = Row(
    "The built-in engine",
    [
        lines(
            "Prompt tokens not computed again",
            TOKENS,
            "By its prefix cache. It keeps what is over until the room is needed: more blocks, more hits.",
            Query(rate("nproxy_engine_prefix_cache_tokens_total", GATEWAY, 'result="hit"'), "from the cache"),
            Query(rate("nproxy_engine_tokens_total", GATEWAY, 'type="prompt"'), "computed"),
            width=12,
        ),
        lines(
            "Times fewer bytes read for attention",
            COUNT,
            "What would be read without sharing, divided by what is. 1: nothing is shared; n is the most that can be.",
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
    "Prompt tokens that were computed once and not n times, and what retries cost.",
    [_NOW, _PROMPTS, _COMPLETIONS, _ENGINE],
    price("prompt_price", "Price of a million prompt tokens", "0.50"),
    price("completion_price", "Price of a million completion tokens", "1.50"),
)

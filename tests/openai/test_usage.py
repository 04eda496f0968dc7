"""Token counts of several calls become one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nproxy.openai.chunks import is_done, parse_chunk
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.sse import SSEDecoder
from nproxy.openai.usage import LegUsage, Usage, merge, parse_usage, running, within_leg
from tests.transcripts.recorded import load


def legs(*usages: Usage | None) -> list[LegUsage]:
    return [LegUsage(None, usage) for usage in usages]


def test_E1_prompt_once_completions_summed_total_recomputed() -> None:
    whole, differ = merge(legs(Usage(10, 5), Usage(10, 7), Usage(10, 3)))
    assert whole == Usage(10, 15)
    assert not differ
    assert whole.to_json() == {"prompt_tokens": 10, "completion_tokens": 15, "total_tokens": 25}


def test_E2_prompt_counts_that_differ() -> None:
    assert merge(legs(Usage(10, 1), Usage(12, 1), Usage(11, 1))) == (Usage(12, 3), True)


def test_E4_completion_details_key_by_key() -> None:
    whole = merge(
        legs(
            Usage(1, 1, completion_details={"reasoning_tokens": 3}),
            Usage(1, 1),
            Usage(1, 1, completion_details={"reasoning_tokens": 4, "accepted_prediction_tokens": 1}),
        )
    )[0]
    assert whole is not None
    assert whole.completion_details == {"reasoning_tokens": 7, "accepted_prediction_tokens": 1}
    assert whole.prompt_details is None
    absent = merge(legs(Usage(1, 1), Usage(1, 1)))[0]
    assert absent is not None
    assert absent.completion_details is None
    assert "completion_tokens_details" not in absent.to_json()


def test_E5_cached_tokens_are_the_first_legs() -> None:
    whole = merge(legs(*(Usage(9, 1, prompt_details={"cached_tokens": cached}) for cached in (2, 8, 8))))[0]
    assert whole is not None
    assert whole.to_json()["prompt_tokens_details"] == {"cached_tokens": 2}


def test_E6_never_a_partial_sum() -> None:
    assert merge(legs(Usage(10, 5), None, Usage(10, 3))) == (None, False)
    assert merge([]) == (None, False)


def test_E11_prompts_add_up() -> None:
    # One leg per prompt and choice.
    apart = [LegUsage(0, Usage(3, 1)), LegUsage(0, Usage(3, 2)), LegUsage(1, Usage(5, 4)), LegUsage(1, Usage(5, 8))]
    assert merge(apart) == (Usage(8, 15), False)
    # Two legs, each with both prompts.
    assert merge(legs(Usage(8, 5), Usage(8, 10)))[0] == Usage(8, 15)
    # A leg with both, and a further one that made up for a missing choice of the second.
    assert merge([*legs(Usage(8, 5)), LegUsage(1, Usage(5, 10))]) == (Usage(8, 15), False)


def test_E12_the_running_total_never_falls() -> None:
    seen = []
    latest: list[Usage | None] = [None, None]
    for leg, usage in [(1, Usage(7, 1)), (1, Usage(7, 2)), (0, Usage(7, 1)), (1, Usage(7, 3)), (0, Usage(7, 9))]:
        latest[leg] = usage
        total = running(legs(*latest))
        assert total is not None
        seen.append((total.prompt, total.completion))
    assert seen == [(7, 1), (7, 2), (7, 3), (7, 4), (7, 12)]
    assert running(legs(None, None)) is None


def test_E14_unknown_keys_are_the_prompts_or_summed() -> None:
    told: list[dict[str, JSON]] = [
        {
            "prompt_cache_hit_tokens": 8 * at,
            "cost": 0.5,
            "cost_details": {"prompt_cost": 0.25, "from": "x"},
            "input_cost": 0.125,
            "tier": str(at),
        }
        for at in range(2)
    ]
    whole = merge(legs(*(Usage(9, 1, extra=extra) for extra in told)))[0]
    assert whole is not None
    summed: dict[str, JSON] = {
        "prompt_cache_hit_tokens": 0,
        "cost": 1.0,
        "cost_details": {"prompt_cost": 0.5, "from": "x"},
        "input_cost": 0.25,
        "tier": "0",
    }
    assert whole.extra == summed
    assert whole.to_json() == Usage(9, 2).to_json() | summed
    # A leg for each prompt and choice: every prompt once.
    apart = [LegUsage(prompt, Usage(9, 1, extra={"cached_tokens": 3, "cost": 1})) for prompt in (0, 0, 1, 1)]
    assert merge(apart)[0] == Usage(18, 4, extra={"cached_tokens": 6, "cost": 4})
    # One for each choice within a leg.
    assert within_leg([Usage(9, 1, extra=extra) for extra in told], {}, 2) == whole


def test_E14_of_values_that_do_not_add_up_the_first_counts() -> None:
    told: list[dict[str, JSON]] = [{"is_byok": True, "a": None, "b": 1}, {"is_byok": True, "a": 2, "b": {"c": 1}}]
    whole = merge(legs(*(Usage(9, 1, extra=extra) for extra in told)))[0]
    assert whole is not None
    assert whole.extra == {"is_byok": True, "a": None, "b": 1}


def test_E14_an_integer_beyond_all_floats_adds_up_to_no_fraction() -> None:
    huge = 10**400
    told = [Usage(9, 1, extra={"cost": cost}) for cost in (huge, huge)]
    assert merge(legs(*told))[0] == Usage(9, 2, extra={"cost": 2 * huge})
    told = [Usage(9, 1, extra={"cost": cost}) for cost in (huge, 0.5)]
    assert merge(legs(*told))[0] == Usage(9, 2, extra={"cost": huge})
    told = [Usage(9, 1, extra={"cost": cost}) for cost in (1e308, 1.5e308)]
    assert merge(legs(*told))[0] == Usage(9, 2, extra={"cost": 1e308})


def test_H2_reasoning_tokens_are_summed() -> None:
    details = {"reasoning_tokens": 5}
    whole = merge(legs(Usage(1, 6, None, details), Usage(1, 7, None, details)))[0]
    assert whole is not None
    assert whole.completion_details == {"reasoning_tokens": 10}


def test_R3_one_usage_per_choice_is_summed_within_a_leg() -> None:
    cached = {"cached_tokens": 33}
    assert within_leg([Usage(34, 4, cached), Usage(34, 8, cached)], {}, 2) == Usage(34, 12, cached)
    assert within_leg([Usage(34, 12)], {0: Usage(34, 4), 1: Usage(34, 8)}, 2) == Usage(34, 12)
    assert within_leg([], {1: Usage(34, 8), 0: Usage(34, 4)}, 2) == Usage(34, 12)
    assert within_leg([], {}, 2) is None
    # More of them than choices cannot be one per choice.
    assert within_leg([Usage(34, 1), Usage(34, 2), Usage(34, 3)], {}, 1) == Usage(34, 3)
    # Nor can fewer, unless more may come: a total, told twice.
    assert within_leg([Usage(34, 12), Usage(34, 12)], {}, 3) == Usage(34, 12)
    assert within_leg([Usage(34, 4), Usage(34, 4)], {}, 3, fewer_are_parts=True) == Usage(34, 8)


@pytest.mark.parametrize(
    ("server", "name", "dialect", "expected"),
    [
        ("vllm", "n2_stream_usage", Dialect.CHAT, Usage(34, 16)),
        ("vllm", "n2_stream_cont_usage", Dialect.CHAT, Usage(34, 16)),
        ("llamacpp", "n2_stream_usage", Dialect.CHAT, Usage(34, 12, {"cached_tokens": 33})),
        ("llamacpp", "cmpl_n2_stream", Dialect.COMPLETIONS, Usage(6, 12, {"cached_tokens": 5})),
        ("vllm", "n2_stream", Dialect.CHAT, None),
    ],
)
def test_R3_recorded_streams(server: str, name: str, dialect: Dialect, expected: Usage | None) -> None:
    decoder = SSEDecoder()
    events = decoder.feed(load(server, name).body) + decoder.close()
    tails: list[Usage] = []
    by_choice: dict[int, Usage] = {}
    for event in events:
        if is_done(event.data):
            continue
        chunk = parse_chunk(event.data, dialect)
        if chunk.usage is not None and not chunk.choices:
            tails.append(chunk.usage)
        for choice in chunk.choices:
            if chunk.usage is not None:
                by_choice[choice.index] = chunk.usage
    assert within_leg(tails, by_choice, 2) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ([], None),
        ({}, None),
        ({"prompt_tokens": None}, None),
        ({"prompt_tokens": True, "completion_tokens": 1}, None),
        ({"prompt_tokens": -1, "completion_tokens": 1}, None),
        ({"prompt_tokens": 1.0, "completion_tokens": 1}, None),
        ({"prompt_tokens": 10**400, "completion_tokens": 1}, None),
        ({"prompt_tokens": 1, "completion_tokens": 10**400, "total_tokens": 3}, Usage(1, 2)),
        ({"prompt_tokens": 1}, Usage(1, 0)),
        ({"prompt_tokens": 0, "completion_tokens": 1}, Usage(0, 1)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, None),
        ({"prompt_tokens": 1, "total_tokens": 5}, Usage(1, 4)),
        ({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 99}, Usage(1, 2)),
        (
            {
                "prompt_tokens": 1,
                "completion_tokens": 2,
                "prompt_tokens_details": None,
                "completion_tokens_details": {"reasoning_tokens": 1, "audio_tokens": None, "x": "y"},
                "cost": 0.5,
            },
            Usage(1, 2, None, {"reasoning_tokens": 1}, {"cost": 0.5}),
        ),
    ],
)
def test_parse_usage(value: object, expected: Usage | None) -> None:
    assert parse_usage(value) == expected  # type: ignore[arg-type]


counts = st.integers(0, 10**6)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.builds(Usage, counts, counts), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_merge_does_not_depend_on_the_order_of_counts(usages: list[Usage], random: object) -> None:
    shuffled = list(usages)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert merge(legs(*usages)) == merge(legs(*shuffled))

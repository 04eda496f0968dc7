"""E: usage, in whole answers and in streams; and what the metrics are told."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import CancelLeg, Finish, Spent
from nproxy.choices.events import LegChunk, LegChunks, Stopped
from nproxy.choices.leg_output import LegOutput
from nproxy.choices.tally import Tally
from nproxy.openai.sse import BETWEEN
from nproxy.openai.usage import Usage
from tests.choices.conduct_player import FANOUT, NATIVE, Play, chat, completion, replayed
from tests.choices.upstream_says import DONE, answer, chunk, delta, text, usage, usage_chunk

ASKED = {"include_usage": True}


def streamed(leg_usages: list[bytes | None], **fields: Any) -> Play:
    """A fan-out whose legs each say a word and then this usage chunk."""
    play = Play(chat(n=len(leg_usages), stream=True, **fields))
    for leg, tail in enumerate(leg_usages):
        play.streams(leg, delta("x"), delta(finish="stop"), *([tail] if tail else []), DONE)
    return play


def test_E1_the_prompt_once_completions_summed() -> None:
    play = Play(chat(n=3))
    for leg, tokens in enumerate((5, 7, 3)):
        play.answers(leg, answer("x", prompt=10, tokens=tokens))
    assert play.reply["usage"] == {"prompt_tokens": 10, "completion_tokens": 15, "total_tokens": 25}
    assert play.of(Spent) == [Spent(10, 15, 30, 15)]


def test_E2_prompt_counts_differ() -> None:
    play = Play(chat(n=2))
    play.answers(0, answer("x", prompt=10, tokens=1))
    play.answers(1, answer("x", prompt=12, tokens=1))
    assert play.reply["usage"]["prompt_tokens"] == 12
    assert "prompt_tokens_differ" in [a.kind for a in play.anomalies]


@pytest.mark.parametrize("n", [1, 2])
def test_running_totals_take_no_memory(n: int) -> None:
    """Some servers send an event of usage behind each chunk. The last one counts, and is passed on."""
    play = Play(chat(n=n, stream=True, stream_options={"include_usage": True}), NATIVE)
    for tokens in range(1, 400):
        play.says(0, *(delta("x", index=index) for index in range(n)), usage_chunk(10, tokens))
    play.says(0, *(delta(index=index, finish="stop") for index in range(n)), DONE)
    output = play.conduct._merge.outputs[0]
    assert len(output.reported.tails) == n + 1
    play.ends(0)
    assert play.frames[-2]["usage"]["completion_tokens"] == 399


def test_E4_E5_H2_details() -> None:
    play = Play(chat(n=2))
    for leg in (1, 0):
        details = {
            "prompt_tokens_details": {"cached_tokens": 8 * leg},
            "completion_tokens_details": {"reasoning_tokens": 3 + leg},
        }
        play.answers(leg, answer("x", usage=usage(10, 5, **details)))
    assert play.reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 7}
    assert play.reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_E6_one_leg_without_usage() -> None:
    play = Play(chat(n=2))
    play.answers(0, answer("x", tokens=5))
    play.answers(1, answer("x"))
    assert "usage" not in play.reply
    assert play.of(Spent) == [Spent(None, None, 10, 5)]


def test_E6_in_a_stream() -> None:
    play = streamed([usage_chunk(10, 5), None], stream_options=ASKED)
    assert all(frame.get("usage") is None for frame in play.frames[:-1])


def test_E7_one_usage_chunk_last() -> None:
    first = delta("x", top={"system_fingerprint": "fp"})
    play = Play(chat(n=2, stream=True, stream_options=ASKED))
    for leg in (0, 1):
        play.streams(leg, first, delta(finish="stop"), usage_chunk(10, 4 + leg), DONE)
    *before, tail, done = play.frames
    assert done == "[DONE]"
    assert tail["choices"] == [] and tail["system_fingerprint"] == "fp"
    assert tail["usage"] == {"prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 19}
    assert all(frame["usage"] is None for frame in before)


def test_E8_not_asked_for() -> None:
    play = streamed([usage_chunk(10, 5), usage_chunk(10, 6)])
    assert b"usage" not in play.emitted
    assert play.of(Spent) == [Spent(10, 11, 20, 11)]


def test_E8_usage_null_from_upstream_is_not_shown() -> None:
    play = Play(chat(n=2, stream=True))
    for leg in (0, 1):
        play.streams(leg, delta("x", top={"usage": None}), delta(finish="stop", top={"usage": usage(3, 1)}), DONE)
    assert b"usage" not in play.emitted
    assert play.of(Spent) == [Spent(3, 2, 6, 2)]


def test_E11_one_leg_with_two_prompts() -> None:
    play = Play(completion(prompt=["a", "b"], n=2))
    said = [{"index": i, "text": "x", "finish_reason": "stop"} for i in range(2)]
    for leg in (0, 1):
        play.answers(leg, json.dumps({"choices": said, "usage": usage(7, 4)}).encode())
    assert play.reply["usage"] == {"prompt_tokens": 7, "completion_tokens": 8, "total_tokens": 15}


def test_E11_a_leg_per_prompt() -> None:
    play = Play(completion(prompt=["a", "b"], n=2), Capability(prompt_lists=False))
    said = [{"index": 0, "text": "x", "finish_reason": "stop"}]
    for leg, prompt_tokens in enumerate((3, 3, 4, 4)):
        play.answers(leg, json.dumps({"choices": said, "usage": usage(prompt_tokens, 2)}).encode())
    assert play.reply["usage"] == {"prompt_tokens": 7, "completion_tokens": 8, "total_tokens": 15}


def test_E11_a_server_that_reads_only_the_first_prompt() -> None:
    play = Play(completion(prompt=["a", "b", "c"], n=2))
    said = [{"index": 0, "text": "x", "finish_reason": "stop"}]
    for leg in range(6):  # two that carry all prompts, and one for each choice that they lack
        prompt = play.opened[leg].leg.prompt or 0
        play.answers(leg, json.dumps({"choices": said, "usage": usage(3 + prompt, 2)}).encode())
    assert play.reply["usage"] == usage(3 + 4 + 5, 12)


def test_E13_usage_beside_several_choices_is_that_of_all() -> None:
    play = Play(chat(n=2, stream=True, stream_options=ASKED), NATIVE)
    for tokens, finish in ((2, None), (4, "stop")):
        both = [{"index": i, "delta": {"content": "x"}, "finish_reason": finish} for i in range(2)]
        play.says(0, chunk(both, usage=usage(10, tokens)))
    play.streams(0, DONE)
    assert play.frames[-2]["usage"] == usage(10, 4)


def test_E13_a_total_stays_a_total_when_one_choice_is_left() -> None:
    play = Play(chat(n=2, stream=True, stream_options=ASKED), NATIVE)
    first, last = ({"index": i, "delta": {"content": "x"}, "finish_reason": "stop"} for i in range(2))
    more = {"index": 1, "delta": {"content": "x"}, "finish_reason": None}
    play.says(0, chunk([first, more], usage=usage(10, 2)), chunk([last], usage=usage(10, 3)))
    play.streams(0, DONE)
    assert play.frames[-2]["usage"] == usage(10, 3)


def test_E12_a_running_total_that_never_falls() -> None:
    play = Play(chat(n=2, stream=True, stream_options={**ASKED, "continuous_usage_stats": True}))
    for done in range(1, 4):
        for leg in (1, 0):
            play.says(leg, delta("x", top={"usage": usage(10, done)}))
    for leg in (0, 1):
        play.streams(leg, delta(finish="stop", top={"usage": usage(10, 3)}), usage_chunk(10, 3), DONE)
    told = [frame["usage"] for frame in play.frames[2:-1]]
    assert [u["completion_tokens"] for u in told] == [1, 2, 3, 4, 5, 6, 6, 6, 6]
    assert {u["prompt_tokens"] for u in told} == {10}


def test_E12_a_chunk_without_a_count_of_its_own_has_none() -> None:
    play = Play(chat(n=2, stream=True, stream_options={**ASKED, "continuous_usage_stats": True}))
    play.says(0, delta("x", top={"usage": usage(10, 1)}))
    play.says(1, delta("y"))
    assert [frame["usage"] for frame in play.frames[2:]] == [usage(10, 1), None]


def test_R3_a_usage_chunk_per_choice() -> None:
    play = Play(chat(n=2, stream=True, stream_options=ASKED), NATIVE)
    play.says(0, delta("x", finish="stop", index=1), usage_chunk(10, 4))
    play.streams(0, delta("x", finish="stop"), usage_chunk(10, 8), DONE)
    tails = [frame for frame in play.frames if isinstance(frame, dict) and not frame["choices"]]
    assert [tail["usage"]["completion_tokens"] for tail in tails] == [12]
    assert tails[0]["usage"]["prompt_tokens"] == 10


def test_R3_E11_a_usage_chunk_per_choice_of_two_prompts() -> None:
    play = Play(completion(prompt=["a", "b"], n=2, stream=True, stream_options=ASKED), NATIVE)
    for index, prompt_tokens in enumerate((3, 3, 4, 4)):
        play.says(0, text("x", index=index, finish="stop"), chunk([], usage=usage(prompt_tokens, 2)))
    play.ends(0)
    assert play.frames[-2]["usage"] == {"prompt_tokens": 7, "completion_tokens": 8, "total_tokens": 15}


def test_E11_usage_that_rides_with_each_choice_of_two_prompts() -> None:
    play = Play(completion(prompt=["a", "b"], n=2, stream=True, stream_options=ASKED), NATIVE)
    for index, prompt_tokens in enumerate((3, 3, 4, 4)):
        said = {"index": index, "text": "x", "logprobs": None, "finish_reason": "stop"}
        play.says(0, chunk([said], usage=usage(prompt_tokens, 2)))
    play.ends(0)
    assert play.frames[-2]["usage"] == {"prompt_tokens": 7, "completion_tokens": 8, "total_tokens": 15}


def test_R4_json_usage_of_one_choice_is_avoided_by_asking_for_a_stream() -> None:
    play = Play(chat(n=2), Capability(native_width=None, json_usage=False))
    play.says(0, delta("x", finish="stop"), usage_chunk(10, 4), delta("y", index=1, finish="stop"))
    play.streams(0, usage_chunk(10, 6), DONE)
    assert play.reply["usage"] == {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}


@pytest.mark.parametrize("capability", [FANOUT, NATIVE])
def test_what_was_spent_is_told_in_failure_too(capability: Capability) -> None:
    play = Play(chat(n=2, stream=True), capability)
    play.says(0, delta("x", top={"usage": usage(3, 1)}), b"{")
    if not play.over:
        play.streams(1, delta("x"), delta(finish="stop"), usage_chunk(3, 2))
    (spent,) = play.of(Spent)
    assert spent.upstream_completion == (1 if capability is NATIVE else 3)


def test_what_a_call_had_spent_that_another_one_replaced_is_counted_beside_it() -> None:
    play = replayed(chat(stream=True, stream_options=ASKED))
    play.breaks_off(0, delta("a", top={"usage": usage(10, 1)}))
    play.fires("retry:0")
    play.streams(0, delta("ab"), delta(finish="stop"), usage_chunk(10, 2), DONE)
    assert play.frames[-2]["usage"] == usage(10, 2)
    assert play.of(Spent) == [Spent(10, 2, 20, 3, prompt_saved=0)]


def test_L7_what_was_spent_is_told_when_the_client_has_left() -> None:
    """Of a call that has not told it, the pieces that came count."""
    play = Play(chat(n=3, stream=True))
    play.streams(0, delta("x"), delta(finish="stop"), usage_chunk(3, 2))
    play.says(1, delta("y"), delta(finish="stop"), usage_chunk(3, 4))
    play.says(2, delta("z"))
    left = play.gets(Stopped())
    assert left == [CancelLeg(1), CancelLeg(2), Spent(None, None, 6, 6 + 1), Finish("")]
    assert play.gets(LegChunk(2, delta("z"))) == []


@pytest.mark.parametrize("together", [True, False])
def test_L7_tokens_before_the_end_of_a_call_count(together: bool) -> None:
    """Also those that come together and are taken in one step, and those of a call that another one replaces."""
    play = replayed(chat(n=2, stream=True, seed=5))
    words = [delta(f"w{number}") for number in range(20)]
    for call in range(2):
        play.says(0, delta(role="assistant"), *words[:3])
        if together:
            play.gets(LegChunks(0, BETWEEN.join(words[3:]), 17))
        else:
            play.says(0, *words[3:])
        if call == 0:
            play.breaks_off(0)
            play.fires("retry:0")
    play.gets(Stopped())
    assert play.of(Spent) == [Spent(None, None, None, 40)]


@pytest.mark.parametrize("how", ["leaves", "is cut"])
def test_L7_counts_of_the_beginning_of_a_stream_are_not_all_that_came(how: str) -> None:
    """Else whoever leaves such a stream before its end pays for one token of an answer of any length."""
    play = replayed(chat(stream=True, seed=5))
    play.says(0, delta(role="assistant", top={"usage": usage(10, 1)}), *[delta("x")] * 20)
    if how == "is cut":
        play.breaks_off(0)
        play.fires("retry:0")
        play.streams(0, *[delta("x")] * 20, delta(finish="stop"), usage_chunk(10, 21), DONE)
        assert play.of(Spent) == [Spent(10, 21, 20, 20 + 21)]
    else:
        play.gets(Stopped())
        assert play.of(Spent) == [Spent(10, 20, 10, 20)]


def test_L7_a_server_that_tells_no_usage_is_counted_by_what_it_sends() -> None:
    play = Play(chat(stream=True))
    play.streams(0, delta("a"), delta("b"), delta(finish="stop"), DONE)
    assert play.of(Spent) == [Spent(None, None, None, 3)], "the end is a token, too"
    play = Play(chat())
    play.answers(0, answer("x", usage=None))
    assert play.of(Spent) == [Spent(None, None, None, None)], "a whole answer has no pieces"


def test_more_usage_chunks_than_choices_are_running_totals() -> None:
    play = Play(chat(n=1, stream=True, stream_options=ASKED))
    play.streams(0, delta("x"), usage_chunk(10, 1), delta(finish="stop"), usage_chunk(10, 2), DONE)
    assert play.frames[-2]["usage"] == usage(10, 2)


@pytest.mark.parametrize("mid", [usage_chunk(10, 2), usage_chunk(10, 6)], ids=["running", "twice"])
def test_fewer_usage_chunks_than_choices_are_not_one_for_each(mid: bytes) -> None:
    play = Play(chat(n=3, stream=True, stream_options=ASKED), NATIVE)
    ends = [delta("y", index=index, finish="stop") for index in range(3)]
    play.streams(0, delta("x"), mid, *ends, usage_chunk(10, 6), DONE)
    assert play.frames[-2]["usage"] == usage(10, 6)
    assert play.of(Spent) == [Spent(10, 6, 10, 6, 20)]


def test_of_a_call_that_broke_off_those_of_the_choices_that_ended_are_summed() -> None:
    """As far as it has told: what was spent is known of two of three choices."""
    play = Play(chat(n=3, stream=True, stream_options=ASKED), NATIVE)
    ended = [part for at in (0, 1) for part in (delta("y", index=at, finish="stop"), usage_chunk(10, 3))]
    play.says(0, delta("x", index=2), *ended)
    play.ends(0)
    (spent,) = play.of(Spent)
    assert (spent.upstream_prompt, spent.upstream_completion) == (10, 6)


def saved(play: Play) -> int:
    (spent,) = play.of(Spent)
    return spent.prompt_saved


def test_choices_of_one_call_share_their_prompt() -> None:
    play = Play(chat(n=3), NATIVE)
    play.answers(0, answer("a", "b", "c", prompt=10, tokens=3))
    assert saved(play) == 20
    play = Play(completion(prompt=["p", "q"], n=2), NATIVE)
    said = [{"index": i, "text": "x", "finish_reason": "stop"} for i in range(4)]
    play.answers(0, answer(choices=said, usage=usage(7, 4)))
    assert saved(play) == 7


@pytest.mark.parametrize(("came", "shared"), [(1, 0), (2, 20), (4, 30)])
def test_choices_that_a_call_did_not_bring_share_nothing(came: int, shared: int) -> None:
    play = Play(chat(n=4), NATIVE)
    play.answers(0, answer(*"abcd"[:came], prompt=10, tokens=came))
    for opened in play.opened[1:]:
        width = opened.leg.width
        play.answers(opened.leg.number, answer(*"x" * width, prompt=10, tokens=width))
    assert play.finish == "ok" and saved(play) == shared


def test_whoever_gets_an_error_is_told_of_no_tokens() -> None:
    """What the upstream has computed for it is counted all the same."""
    play = Play(chat(n=4, stream=True), NATIVE)
    play.streams(0, usage_chunk(10, 3), DONE)
    assert play.finish == "short"
    assert play.of(Spent) == [Spent(None, None, 10, 3)]


def test_a_failed_call_shares_nothing() -> None:
    play = Play(chat(n=4, stream=True), NATIVE)
    play.streams(0, usage_chunk(10, 0), DONE)
    assert play.finish == "short" and saved(play) == 0


def test_calls_of_one_choice_share_nothing_but_what_the_upstreams_cache_holds() -> None:
    play = Play(chat(n=3))
    for leg, cached in enumerate((2, 9, 0)):
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        play.answers(leg, answer("x", usage=usage(10, 1, **details)))
    assert saved(play) == 7, "what the first found is older than the request"


def test_one_choice_saves_nothing() -> None:
    play = Play(chat())
    play.answers(0, answer("x", usage=usage(10, 1, prompt_tokens_details={"cached_tokens": 8})))
    assert saved(play) == 0


@pytest.mark.parametrize(("prompts", "n", "capability"), [(1, 5, FANOUT), (3, 2, NATIVE), (2, 3, FANOUT)])
def test_the_running_total_of_one_leg_at_a_time_is_that_of_all(
    prompts: int, n: int, capability: Capability, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept up to date by the leg that reports, and computed from all legs: the same."""
    random = Random(7)
    request = completion(
        prompt=["p"] * prompts, n=n, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}
    )
    totals: list[Usage | None] = []
    kept_up_to_date = Tally.running

    def compared(tally: Tally, reporting: LegOutput) -> Usage | None:
        total = kept_up_to_date(tally, reporting)
        assert total == kept_up_to_date(Tally(tally._outputs), reporting)
        totals.append(total)
        return total

    monkeypatch.setattr(Tally, "running", compared)
    play = Play(request, capability)
    counts: Counter[tuple[int, int]] = Counter()
    for _ in range(100):
        leg = random.choice([*play.open])
        index = random.randrange(play.open[leg].leg.choices(prompts))
        counts[leg, index] += random.randint(1, 3)
        play.says(leg, text("x", index=index, usage=usage(10 + leg % 3, counts[leg, index])))
    assert len(totals) == 100 and totals[-1] is not None and totals[-1].completion == counts.total()
    assert play.conduct._merge._tally._running is not None, "it is kept up to date"

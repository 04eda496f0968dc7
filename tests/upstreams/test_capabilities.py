"""What the configuration says and answers teach."""

from __future__ import annotations

from typing import Any

import pytest

from nproxy.choices.lessons import FieldRefused, Lacks, Lesson, NativeWidth, OneAtATime, Scores, Verdict
from nproxy.config import Upstream
from nproxy.upstreams.capabilities import LESSON_SECONDS, MOST_LESSONS, SIGHTS, Capabilities


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def capabilities(clock: Clock | None = None, **settings: Any) -> Capabilities:
    upstream = Upstream.model_validate({"name": "u", "replicas": ["http://h/v1"], **settings})
    return Capabilities(upstream, clock=clock or Clock())


def test_configured_n() -> None:
    for n, width in (("native", None), ("fanout", 1), ({"native_up_to": 4}, 4)):
        told = capabilities(n=n).snapshot("m", None)
        assert (told.native_width, told.n_untested) == (width, False)


def test_auto_is_untested_until_an_answer_teaches() -> None:
    known = capabilities()
    assert known.snapshot("m", None).n_untested
    known.learn("m", NativeWidth(asked=4, got=4))
    told = known.snapshot("m", None)
    assert (told.native_width, told.n_untested) == (None, False)
    assert known.snapshot("other", None).n_untested, "a lesson is about one model"


def test_a_short_answer_teaches_the_limit() -> None:
    known = capabilities()
    known.learn("m", NativeWidth(asked=4, got=1))
    assert known.snapshot("m", None).native_width == 1
    known.learn("m", NativeWidth(asked=8, got=2))
    assert known.snapshot("m", None).native_width == 2


def test_what_is_configured_is_not_unlearned() -> None:
    known = capabilities(n="native", seed="send")
    known.learn("m", NativeWidth(asked=4, got=1))
    known.learn("m", FieldRefused("seed"))
    told = known.snapshot("m", None)
    assert (told.native_width, told.seed_refused) == (None, False)


def test_refused_fields_are_left_out() -> None:
    known = capabilities()
    known.learn("m", FieldRefused("seed"))
    assert known.snapshot("m", None).seed_refused
    assert known.snapshot("m", None).stream_options
    known.learn("m", FieldRefused("stream_options"))
    assert not known.snapshot("m", None).stream_options
    assert not capabilities(seed="omit").snapshot("m", None).seed


def test_lessons_are_forgotten() -> None:
    clock = Clock()
    known = capabilities(clock)
    known.learn("m", NativeWidth(asked=4, got=1))
    known.learn("m", FieldRefused("seed"))
    assert known.known() == {"m": {"n": 1, "seed": False}}
    clock.now = LESSON_SECONDS
    told = known.snapshot("m", None)
    assert told.n_untested and not told.seed_refused
    assert known.known() == {}


def test_parallel_is_per_replica() -> None:
    upstream: dict[str, Any] = {"replicas": ["http://a/v1", "http://b/v1"], "parallel": 2}
    assert capabilities(**upstream).snapshot("m", None).parallel == 4
    assert capabilities().snapshot("m", None).parallel is None


def test_parallel_follows_replicas_that_come_and_go() -> None:
    known = Capabilities(Upstream.model_validate({"name": "u", "replicas": ["http://a/v1"], "parallel": 2}), 2)
    assert known.snapshot("m", None).parallel == 4
    known.count_replicas(3)
    assert known.snapshot("m", None).parallel == 6


def test_a_lesson_that_nobody_asks_for_does_not_keep_snapshots_from_being_kept() -> None:
    """Whether lists of prompts are taken does not matter where `n` is 1."""
    clock = Clock()
    known = capabilities(clock)
    known.learn("m", FieldRefused("prompt_lists"))
    clock.now = LESSON_SECONDS / 2
    known.learn("m", NativeWidth(asked=4, got=1))
    clock.now = LESSON_SECONDS
    assert known.snapshot("m", None) is known.snapshot("m", None)


def test_snapshots_that_were_made_do_not_pile_up() -> None:
    known = capabilities()
    for number in range(MOST_LESSONS + 10):
        known.snapshot(f"m{number}", None)
    assert len(known._made) <= MOST_LESSONS


def test_R4_usage_of_whole_answers_is_believed_unless_configured_otherwise() -> None:
    assert capabilities().snapshot("m", None).json_usage
    assert not capabilities(usage="stream").snapshot("m", None).json_usage


@pytest.mark.parametrize(
    ("n", "prompts", "lists"),
    [
        ("auto", "auto", True),
        ("native", "auto", True),
        ({"native_up_to": 4}, "auto", True),
        ("fanout", "auto", False),
        ("fanout", "list", True),
        ("native", "one", False),
    ],
)
def test_J4_lists_of_prompts_go_to_servers_with_n_and_to_those_that_are_said_to_take_them(
    n: object, prompts: str, lists: bool
) -> None:
    assert capabilities(n=n, prompts=prompts).snapshot("m", None).prompt_lists is lists


@pytest.mark.parametrize("lesson", [NativeWidth(asked=2, got=1), FieldRefused("prompt_lists")])
def test_J4_a_server_that_turns_out_to_have_no_n_or_to_refuse_lists_gets_none(lesson: Lesson) -> None:
    known = capabilities(n="auto")
    known.learn("m", lesson)
    assert not known.snapshot("m", None).prompt_lists
    assert known.snapshot("other", None).prompt_lists


def test_Q3_where_all_legs_go_to_one_replica_its_own_limit_holds() -> None:
    upstream: dict[str, Any] = {"replicas": ["http://a/v1", "http://b/v1"], "parallel": 2}
    told = capabilities(**upstream, prefix_cache=True).snapshot("m", None)
    assert told.prefix_cache and told.parallel == 2
    assert not capabilities(**upstream).snapshot("m", None).prefix_cache


def test_what_answers_lack_is_remembered() -> None:
    clock = Clock()
    known = capabilities(clock)
    for what in ("logprobs", "stream_usage", "json_usage"):
        assert getattr(known.snapshot("m", None), what)
        for _ in range(SIGHTS if what == "logprobs" else 1):
            assert getattr(known.snapshot("m", None), what)
            known.learn("m", Lacks(what))
        assert not getattr(known.snapshot("m", None), what)
    clock.now = LESSON_SECONDS
    told = known.snapshot("m", None)
    assert told.logprobs and told.stream_usage and told.json_usage


def test_a_refused_request_id_is_left_out() -> None:
    known = capabilities()
    assert known.snapshot("m", None).request_id
    known.learn("m", FieldRefused("request_id"))
    assert not known.snapshot("m", None).request_id


def test_R9_a_suspicion_is_tried_and_not_told() -> None:
    clock = Clock()
    known = capabilities(clock, replicas=["http://a/v1", "http://b/v1"])
    known.learn("m", OneAtATime("suspected"))
    told = known.snapshot("m", None)
    assert (told.alone, told.alone_on_trial, told.parallel) == (True, True, 2)
    assert known.known() == {}
    known.learn("m", OneAtATime("confirmed"))
    told = known.snapshot("m", None)
    assert (told.alone, told.alone_on_trial, told.parallel) == (True, False, 2)
    assert known.known() == {"m": {"parallel": 1}} and known.status()["m"]["parallel"] == 2
    clock.now = LESSON_SECONDS
    assert not known.snapshot("m", None).alone and known.known() == {}


def test_R9_verdicts_give_way_to_surer_ones_only() -> None:
    known = capabilities()
    told: list[tuple[Verdict, bool]]
    told = [("suspected", True), ("refuted", False), ("suspected", False), ("confirmed", True)]
    for verdict, alone in told:
        known.learn("m", OneAtATime(verdict))
        assert known.snapshot("m", None).alone is alone
    known.learn("m", OneAtATime("refuted"))
    assert known.snapshot("m", None).alone and not known.snapshot("m", None).alone_on_trial


def test_R9_a_configured_parallel_is_not_unlearned() -> None:
    known = capabilities(parallel=3)
    known.learn("m", OneAtATime("confirmed"))
    told = known.snapshot("m", None)
    assert (told.alone, told.parallel) == (False, 3)


def test_J12_one_answer_without_log_probabilities_is_odd_and_two_in_a_row_are_not() -> None:
    known = capabilities()
    for _ in range(3):
        known.learn("m", Lacks("logprobs"))
        assert known.snapshot("m", None).logprobs and known.known() == {}
        known.learn("m", Scores())
    known.learn("m", Lacks("logprobs"))
    known.learn("m", Lacks("logprobs"))
    assert not known.snapshot("m", None).logprobs and known.known() == {"m": {"logprobs": False}}
    known.learn("m", Scores())
    assert known.snapshot("m", None).logprobs and known.known() == {}


def test_Q6_a_width_that_has_worked_is_asked_for_again_before_it_is_given_up() -> None:
    known = capabilities()
    known.learn("m", NativeWidth(asked=8, got=8))
    known.learn("m", NativeWidth(asked=2, got=1))
    told = known.snapshot("m", None)
    assert told.n_untested and told.native_width is None and known.known() == {}
    known.learn("m", NativeWidth(asked=8, got=8))
    assert not known.snapshot("m", None).n_untested and known.known() == {"m": {"n": None}}
    for _ in range(2):
        known.learn("m", NativeWidth(asked=8, got=1))
    assert known.snapshot("m", None).native_width == 1


def test_Q6_the_widest_call_that_was_answered_in_full_is_known() -> None:
    known = capabilities()
    assert known.snapshot("m", None).width_seen is None
    known.learn("m", NativeWidth(asked=2, got=2))
    known.learn("m", NativeWidth(asked=8, got=8))
    assert known.snapshot("m", None).width_seen == 8
    assert capabilities(n="native").snapshot("m", None).width_seen is None


def test_told_are_models_that_are_configured_or_were_learned_about() -> None:
    known = capabilities(models=["a"], prefix_cache=True)
    assert list(known.status()) == ["a"]
    known.learn("b", NativeWidth(asked=4, got=2))
    known.learn("b", FieldRefused("seed"))
    fields = (
        "stream_n",
        "seed",
        "stream_options",
        "request_id",
        "prompt_lists",
        "logprobs",
        "stream_usage",
        "json_usage",
    )
    unbounded = {**dict.fromkeys((*fields, "prefix_cache"), True), "parallel": None}
    assert known.status() == {"a": {"n": "untested", **unbounded}, "b": {"n": 2, **unbounded, "seed": False}}
    assert capabilities(models=["a"], n="native").status()["a"]["n"] is None
    assert capabilities().status() == {}


def test_lessons_about_made_up_models_do_not_pile_up() -> None:
    known = capabilities()
    for number in range(MOST_LESSONS + 10):
        known.learn(f"m{number}", FieldRefused("seed"))
    assert len(known.known()) == MOST_LESSONS
    assert known.snapshot(f"m{MOST_LESSONS + 9}", None).seed_refused and not known.snapshot("m0", None).seed_refused


def test_alias_and_wire_go_through() -> None:
    told = capabilities(wire="exact").snapshot("alias", "real")
    assert (told.model, told.exact) == ("real", True)


def test_a_lesson_that_is_known_is_not_new() -> None:
    known = capabilities()
    for lesson in (NativeWidth(4, 2), FieldRefused("seed"), Lacks("stream_usage"), OneAtATime("suspected")):
        assert [known.learn("m", lesson), known.learn("m", lesson)] == [True, False], lesson
    assert known.learn("m", NativeWidth(8, 4)), "another limit"
    assert known.learn("other", FieldRefused("seed")), "another model"
    assert not known.learn("m", Scores()), "nothing to take back"
    assert [known.learn("m", Lacks("logprobs")) for _ in range(SIGHTS + 2)] == [True] * SIGHTS + [False] * 2
    assert known.learn("m", Scores())
    assert not capabilities(n="native").learn("m", NativeWidth(4, 1)), "what is configured is not unlearned"

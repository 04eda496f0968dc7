"""The interview against pretended servers: each habit of a real one is seen for what it is."""

from __future__ import annotations

from typing import Any

import pytest

from nproxy.cli.probe import tools
from nproxy.cli.probe.findings import FACTS
from nproxy.cli.probe.interview import ProbeFailed
from nproxy.cli.probe.questions import Get, Post, Reply
from tests.cli.probe.pretend import MODEL, PLAN, Pretend, refusal, reply


def verdict(server: Pretend, fact: str, section: str = "chat") -> str:
    return server.probe()[section, fact].verdict


def test_a_server_that_does_everything_right() -> None:
    report = Pretend().probe()
    silent = {"slots", "prefix_cache", "cancel"}
    assert {name for name, found in report.sections["server"].items() if found.verdict != "yes"} == silent
    assert {name for name, found in report.sections["chat"].items() if found.verdict != "yes"} == set()
    not_asked = {"sampling", "seed_accepted", "seed", "seed_per_choice", "fresh_seed", "n_greedy"}
    assert {name for name, found in report.sections["completions"].items() if found.verdict != "yes"} == not_asked
    assert (report.model, report.models) == (MODEL, (MODEL, "another"))
    assert report["chat", "n"].value == 128
    assert report.questions < 40


def test_every_report_holds_every_fact_in_order() -> None:
    report = Pretend(paths=("/completions",)).probe()
    assert {section: list(found) for section, found in report.sections.items()} == {
        section: list(facts) for section, facts in FACTS.items()
    }


def test_questions_are_tiny_and_few() -> None:
    server = Pretend()
    report = server.probe()
    assert report.questions == len(server.asked)
    assert max(body["max_tokens"] for body in server.bodies if "tools" not in body) <= PLAN.tokens
    assert max(body["max_tokens"] for body in server.bodies) <= 64
    assert sum(body["max_tokens"] * body.get("n", 1) for body in server.bodies) < 1000


def test_n_ignored() -> None:
    server = Pretend(ignore=("n",))
    report = server.probe()
    assert (report["chat", "n"].verdict, report["chat", "n"].value) == ("no", "ignored")
    assert report["chat", "usage_all_choices"].verdict == "unknown"
    assert [body["n"] for body in server.bodies if "n" in body] == [2, 2]  # no wider, no greedy, no stream


def test_n_refused() -> None:
    report = Pretend(refuse={"n": "only n=1"}).probe()
    found = report["chat", "n"]
    assert (found.verdict, found.value, found.how) == ("no", "refused", "n=2 is refused: 400: only n=1")


def test_n_at_one_endpoint_only() -> None:
    class Half(Pretend):
        def _post(self, post: Post) -> Reply:
            self.widest = 1 if post.path == "/completions" else 10_000
            return super()._post(post)

    report = Half(over="fewer").probe()
    assert (report["chat", "n"].verdict, report["completions", "n"].verdict) == ("yes", "no")


@pytest.mark.parametrize("widest", [2, 3, 5, 31, 32, 33, 127])
def test_the_limit_is_found_by_halving(widest: int) -> None:
    assert Pretend(widest=widest).probe()["chat", "n"].value == widest


def test_the_limit_that_the_refusal_names_is_tried_first() -> None:
    server = Pretend(widest=41, wording="Field 'n': Value must be between 1 <= value <= 41, but got 64")
    assert server.probe()["chat", "n"].value == 41
    widths = [body["n"] for body in server.bodies if body.get("n", 2) != 2]
    assert widths == [4, 8, 16, 32, 64, 41, 4]  # the last asks with a seed


def test_a_limit_that_is_named_but_not_true_is_not_believed() -> None:
    assert Pretend(widest=5, wording="n must be at most 7").probe()["chat", "n"].value == 5


def test_fewer_choices_than_asked_are_the_limit() -> None:
    found = Pretend(widest=4, over="fewer").probe()["chat", "n"]
    assert (found.verdict, found.value) == ("yes", 4)


def test_a_busy_server_sets_no_limit() -> None:
    found = Pretend(widest=4, over="fail").probe()["chat", "n"]
    assert (found.value, found.how) == (4, "n=4 gave 4 choices; n=8: 503: too many")


def test_n_refused_only_when_greedy() -> None:
    report = Pretend(greedy_n=False).probe()
    assert report["chat", "n"].verdict == "yes"
    assert report["chat", "n_greedy"].verdict == "no"


def test_seed_refused() -> None:
    report = Pretend(refuse={"seed": "unknown parameter seed"}).probe()
    assert [report["chat", fact].verdict for fact in ("seed_accepted", "seed", "seed_per_choice")] == [
        *("no", "no", "unknown")
    ]
    assert report["chat", "fresh_seed"].verdict == "yes"


def test_seed_ignored() -> None:
    report = Pretend(ignore=("seed",)).probe()
    assert [report["chat", fact].verdict for fact in ("seed_accepted", "seed")] == ["yes", "no"]
    assert report["chat", "seed"].how == "the same seed gave different answers"


def test_seed_ignored_for_a_fixed_one() -> None:
    report = Pretend(ignore=("seed",), fixed_seed=True).probe()
    assert report["chat", "sampling"].verdict == "yes"
    assert report["chat", "seed"].how == "two seeds gave the same answer"
    assert report["chat", "fresh_seed"].verdict == "no"


def test_fixed_default_seed() -> None:
    found = Pretend(fixed_seed=True).probe()["chat", "fresh_seed"]
    assert (found.verdict, found.how) == (
        "no",
        "two requests without a seed gave the same answer, although different seeds change it",
    )


def test_R6_one_seed_for_all_choices() -> None:
    assert verdict(Pretend(same_seed=True), "seed_per_choice") == "no"
    assert Pretend().probe()["chat", "seed_per_choice"].how == "choice i equals the answer to one request with seed + i"


def test_it_never_draws() -> None:
    report = Pretend(draws="never").probe()
    assert report["chat", "sampling"].verdict == "no"
    unknown = [report["chat", fact].verdict for fact in ("seed", "fresh_seed", "seed_per_choice")]
    assert unknown == ["unknown"] * 3


def test_it_draws_only_when_told_so_in_its_own_field() -> None:
    server = Pretend(draws="specially")
    report = server.probe()
    assert (report["chat", "sampling"].verdict, report["chat", "sampling"].value) == ("no", "generation_config")
    assert [report["chat", fact].verdict for fact in ("seed", "fresh_seed", "seed_per_choice")] == ["yes"] * 3
    assert all("generation_config" in body for body in server.bodies if "n" in body)


def test_R4_usage_of_one_choice_only() -> None:
    report = Pretend(counts="one").probe()
    assert report["chat", "usage_all_choices"].verdict == "no"
    assert report["chat", "stream_usage_all_choices"].verdict == "no"
    assert report["completions", "usage_all_choices"].verdict == "no"


def test_usage_of_answers_that_end_early_tells_nothing() -> None:
    assert verdict(Pretend(counts="one", finish="stop"), "stream_usage_all_choices") == "unknown"


def test_R3_a_usage_chunk_for_each_choice() -> None:
    report = Pretend(usage="tails", counts="one").probe()
    assert report["chat", "stream_usage_once"].how == "2 chunks for 2 choices"
    assert report["chat", "stream_usage_all_choices"].verdict == "yes"


def test_usage_that_rides_with_the_choices() -> None:
    assert verdict(Pretend(usage="both"), "stream_usage_once") == "no"  # vllm-mlx
    report = Pretend(usage="rider").probe()
    assert [report["chat", fact].verdict for fact in ("stream_usage", "stream_usage_once")] == ["yes", "no"]
    assert report["chat", "stream_usage_all_choices"].verdict == "yes"


def test_no_usage() -> None:
    report = Pretend(usage="none").probe()
    facts = ("usage", "stream_usage", "stream_usage_once", "usage_all_choices")
    assert [report["chat", fact].verdict for fact in facts] == ["no", "no", "unknown", "unknown"]


def test_stream_options_refused() -> None:
    report = Pretend(refuse={"stream_options": "unknown: stream_options"}).probe()
    facts = ("stream", "stream_options", "stream_usage", "done")
    assert [report["chat", fact].verdict for fact in facts] == ["yes", "no", "no", "yes"]


@pytest.mark.parametrize(
    ("roles", "how"),
    [
        ("reversed", "in the order [1, 0]"),
        ("late", "text of one choice comes before the role of another"),
        ("none", "no role for [0, 1]"),
        ("twice", "roles are repeated"),
    ],
)
def test_R1_role_chunks(roles: Any, how: str) -> None:
    found = Pretend(roles=roles).probe()["chat", "role_chunks"]
    assert (found.verdict, found.how) == ("no", how)


def test_R2_an_id_for_each_choice() -> None:
    assert verdict(Pretend(ids="many"), "one_id") == "no"


def test_D10_no_done() -> None:
    assert verdict(Pretend(done=False), "done") == "no"


def test_logprobs_and_echo_ignored() -> None:
    report = Pretend(ignore=("logprobs", "echo")).probe()
    assert [report["chat", "logprobs"].verdict, report["completions", "logprobs"].verdict] == ["no", "no"]
    assert report["completions", "echo"].verdict == "no"


def test_J4_one_string_only() -> None:
    class OneString(Pretend):
        def _post(self, post: Post) -> Reply:
            one = isinstance(post.body.get("prompt", ""), str)
            return super()._post(post) if one else refusal("prompt must be a string")

    report = OneString().probe()
    facts = ("prompt_lists", "token_prompts", "echo")
    assert [report["completions", fact].verdict for fact in facts] == ["no", "no", "yes"]


def test_J4_a_server_that_dies_of_a_list_is_asked_for_it_last() -> None:
    report = Pretend(prompt_lists="die", cached=32).probe()
    found = report["completions", "prompt_lists"]
    assert (found.verdict, found.how) == ("no", "it stopped answering after that: 404: generation thread died")
    assert [report["completions", fact].verdict for fact in ("token_prompts", "echo")] == ["yes", "yes"]
    assert [report["server", fact].verdict for fact in ("prefix_cache", "beside")] == ["yes", "yes"]


@pytest.mark.parametrize(
    ("stream_n", "verdict", "how"),
    [
        ("all", "yes", "n=2 gave 2 choices"),
        ("breaks", "no", "n=2: broke off: the connection was closed"),
        ("empty", "no", "n=2: the stream held no choice"),
        ("unfinished", "no", "n=2 gave 2 choices, and a finish_reason for 1"),
        ("mixed", "no", "n=2 gave 1 choice"),
    ],
)
def test_Q6_streams_of_several(stream_n: Any, verdict: str, how: str) -> None:
    report = Pretend(stream_n=stream_n).probe()
    for section in ("chat", "completions"):
        found = report[section, "n_stream"]
        assert (found.verdict, found.how) == (verdict, how)
        assert report[section, "stream"].verdict == "yes", "of one choice at least"
    assert report["chat", "n"].value == 128


def test_J4_lists_of_prompts_as_streams() -> None:
    found = Pretend(prompt_lists="whole").probe()["completions", "prompt_lists"]
    assert (found.verdict, found.how) == ("no", "as a stream: 500: Internal Server Error")


@pytest.mark.parametrize(("cached", "expected"), [(None, "unknown"), (0, "no"), (32, "yes")])
def test_cached_prefixes_only_where_told(cached: int | None, expected: str) -> None:
    assert verdict(Pretend(cached=cached), "prefix_cache", "server") == expected


@pytest.mark.parametrize(("hits", "cached", "expected"), [(160, None, "yes"), (0, None, "no"), (0, 32, "yes")])
def test_cached_prefixes_in_metrics(hits: int, cached: int | None, expected: str) -> None:
    told = [Reply(200, {}, f'vllm:prefix_cache_hits_total{{a="b"}} {n}.0\n'.encode()) for n in (7, 7 + hits)]
    assert verdict(Pretend(cached=cached, gets={"/metrics": iter(told)}), "prefix_cache", "server") == expected


def test_slots() -> None:
    slots = [{"id": 0, "is_processing": False}, {"id": 1, "is_processing": False}]
    assert Pretend(gets={"/slots": iter([reply(slots)])}).probe()["server", "slots"].value == 2
    assert Pretend(gets={"/props": iter([reply({"total_slots": 4})])}).probe()["server", "slots"].value == 4
    assert verdict(Pretend(gets={"/slots": iter([reply({"echo": "all"})])}), "slots", "server") == "unknown"


def running(*counts: int) -> dict[str, Any]:
    told = [f'vllm:num_requests_running{{a="b"}} {n}.0\n'.encode() for n in (0, *counts)]  # the first asks for hits
    return {"/metrics": iter([Reply(200, {}, text) for text in told])}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((0, 1, 1, 0), "yes"),
        ((0, 1, 1, 1, 1, 1, 1), "no"),
        ((3,), "unknown"),
        ((0, 0), "unknown"),
        ((), "unknown"),
    ],
    ids=["stops", "goes on", "busy already", "too fast to see", "silent"],
)
def test_L1_leaving(counts: tuple[int, ...], expected: str) -> None:
    assert verdict(Pretend(gets=running(*counts)), "cancel", "server") == expected


def test_leaving_seen_in_slots() -> None:
    def slots(busy: bool) -> Reply:
        return reply([{"id": 0, "is_processing": busy}, {"id": 1, "is_processing": False}])

    told = iter([slots(False), slots(False), slots(True), slots(False)])  # the first is read for their number
    found = Pretend(gets={"/slots": told}).probe()["server", "cancel"]
    assert (found.verdict, found.how) == ("yes", "/slots shows it idle 0.25 s after the disconnect")


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (Pretend(), "yes"),
        (Pretend(cuts=True), "no"),
        (Pretend(cuts=True, paths=("/completions",)), "no"),
        (Pretend(cuts=True, finish=None), "unknown"),  # no stream ends there
    ],
    ids=["goes on", "cut", "cut, legacy", "never ends"],
)
def test_a_second_request(server: Pretend, expected: str) -> None:
    assert verdict(server, "beside", "server") == expected


@pytest.mark.parametrize(
    ("server", "expected"),
    [(Pretend(), "yes"), (Pretend(one_seed=True), "no"), (Pretend(ignore=("seed",)), "unknown")],
    ids=["each its own", "one for all", "none"],
)
def test_B1_two_seeds_at_once(server: Pretend, expected: str) -> None:
    assert verdict(server, "seeds_at_once", "server") == expected


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (Pretend(), ("yes", 32, "32 concurrent calls were answered")),
        (Pretend(room=5), ("no", 5, "27 of 32 concurrent calls were refused: 503: server busy, please try again")),
        (
            Pretend(room=5, room_for_long_ones=3),
            ("no", 3, "27 of 32 concurrent calls were refused: 503: server busy, "),
        ),
        (
            Pretend(room=2, room_for_long_ones=0),
            ("unknown", None, "30 of 32 concurrent calls were refused: 503: server"),
        ),
        (Pretend(room=0), ("unknown", None, "32 of 32 concurrent calls were refused: 503: server busy")),
    ],
    ids=["for all", "for some", "for fewer that take longer", "for none then", "for none"],
)
def test_R11_room_for_calls_at_once(server: Pretend, expected: tuple[str, int | None, str]) -> None:
    found = server.probe()["server", "at_once"]
    assert (found.verdict, found.value) == expected[:2] and found.how.startswith(expected[2])


def test_calls_at_once_are_not_made_where_two_are_too_many() -> None:
    assert Pretend(cuts=True).probe()["server", "at_once"].how == "not asked"


def test_only_legacy_completions() -> None:
    report = Pretend(paths=("/completions",)).probe()
    assert report["chat", "available"].verdict == "no"
    assert report["completions", "n"].value == 128
    assert report["completions", "seed_per_choice"].verdict == "yes"
    assert report["chat", "n"].how == "the endpoint does not answer"


def test_the_newer_name_of_max_tokens() -> None:
    server = Pretend(
        refuse={"max_tokens": "'max_tokens' is not supported with this model. Use 'max_completion_tokens'"}
    )
    assert server.probe()["chat", "available"].verdict == "yes"


def test_the_model_that_is_named_is_asked() -> None:
    server = Pretend(listed=refusal("no list", 500))
    with pytest.raises(ProbeFailed, match="no model to ask: /models: 500: no list; name one with --model"):
        server.probe()
    report = server.probe(type(PLAN)(nonce="nonce", model="mine"))
    assert {body["model"] for body in server.bodies} == {"mine"}
    assert report["server", "model_list"].verdict == "no"


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (Pretend(listed=Reply(0, failure="cannot be reached")), "cannot be reached"),
        (Pretend(listed=refusal("no key", 401)), r"it needs a key \(--api-key\): 401: no key"),
        (Pretend(paths=()), "model pretend answers at no endpoint: 404: no such path"),
        (Pretend(listed=reply({"data": [{"id": None}]})), "no model to ask: /models lists none; name one"),
        (Pretend(listed=reply([])), "no model to ask: it returned no list of models at /models, but application/json"),
    ],
)
def test_nothing_useful(server: Pretend, message: str) -> None:
    with pytest.raises(ProbeFailed, match=message):
        server.probe()


@pytest.mark.parametrize(
    ("server", "expected", "how"),
    [
        (Pretend(), "yes", "tool_choice required: it was called"),
        (Pretend(tool_choices=(tools.CHOICES["named"],)), "yes", "tool_choice named: it was called"),
        (Pretend(ignore=("tool_choice",)), "no", "tool_choice named: it was not called"),
        (Pretend(refuse={"tools": "no tools here"}), "no", "400: no tools here"),
        (Pretend(paths=("/completions",)), "unknown", "the endpoint does not answer"),
    ],
)
def test_a_tool_that_must_be_called(server: Pretend, expected: str, how: str) -> None:
    found = server.probe()["chat", "tools"]
    assert (found.verdict, found.how) == (expected, how)


@pytest.mark.parametrize(
    ("server", "name", "own"),
    [
        (Pretend(headers={"server": "uvicorn"}), "uvicorn", False),
        (
            Pretend(listed=reply({"data": [{"id": "m", "owned_by": "me"}]}), headers={"server": "uvicorn"}),
            "uvicorn",
            False,
        ),
        (Pretend(headers={"x-nproxy-mode": "fanout"}), "nproxy (fanout)", False),
        (Pretend(listed=reply({"data": [{"id": "m", "owned_by": "vllm"}]})), "vllm", False),
        (Pretend(listed=reply({"data": [{"id": "m", "owned_by": "nproxy"}]})), "nproxy's engine", True),
    ],
)
def test_what_it_calls_itself(server: Pretend, name: str, own: bool) -> None:
    report = server.probe()
    assert (report.server, report.own_engine) == (name, own)


def test_what_a_server_says_is_fit_for_a_terminal() -> None:
    found = Pretend(refuse={"n": "\x1b[2J no\r\nway " + "x" * 500}).probe()["chat", "n"]
    assert found.how.isprintable()
    assert len(found.how) < 200


def test_root_paths_are_asked_at_the_root() -> None:
    server = Pretend()
    server.probe()
    gets = {question.path: question.root for question in server.asked if isinstance(question, Get)}
    assert gets == {"/models": False, "/slots": True, "/props": True, "/metrics": True}

"""What is typed behind a slash, and which way a conversation takes."""

from __future__ import annotations

import pytest

from nproxy.cli.chat.conversation import Conversation
from nproxy.cli.chat.settings import Settings
from nproxy.cli.chat.slash import State, obey
from nproxy.cli.wrong_use import WrongUse

START = State(Settings("m"))


def after(*lines: str, state: State = START) -> State:
    for line in lines:
        state = obey(line, state).state
    return state


def answered(*answers: str) -> State:
    return State(START.settings, Conversation().answered("why", answers), "why")


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("/n 8", "n", 8),
        ("/seed -1", "seed", -1),
        ("/temperature 0", "temperature", 0.0),
        ("/max-tokens 5", "max_tokens", 5),
        ("/system  Be  brief. ", "system", "Be  brief."),
        ("/model a/b", "model", "a/b"),
    ],
)
def test_settings_change(line: str, name: str, value: object) -> None:
    assert getattr(after(line).settings, name) == value
    word = line.split()[0]
    assert obey(word, after(line)).text == f"{name.replace('_', ' ')}: {value}"  # it says what it is
    if word not in ("/n", "/model"):
        assert getattr(after(line, f"{word} off").settings, name) is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("/n", None),
        ("/n 0", "from 1 to 512"),
        ("/n 513", "from 1 to 512"),
        ("/n x", "a whole number is expected"),
        ("/n off", "a whole number is expected"),
        ("/seed 1.5", "a whole number (or off) is expected"),
        ("/temperature -1", "a number of at least 0 (or off) is expected"),
        ("/temperature nan", "a number of at least 0 (or off) is expected"),
        ("/temperature inf", "a number of at least 0 (or off) is expected"),
        ("/max-tokens 0", "of at least 1 (or off)"),
        ("/retry", "there is no prompt yet"),
        ("/retry now", "takes no argument"),
        ("/pick 0", "there are no answers yet"),
        ("/", "there is no /;"),
        ("/frob 1", "there is no /frob"),
    ],
)
def test_what_cannot_be_is_said(line: str, why: str | None) -> None:
    if why is None:
        obey(line, START)
        return
    with pytest.raises(WrongUse) as told:
        obey(line, START)
    assert why in str(told.value)


def test_picking() -> None:
    state = answered("a", "", "c")
    assert after("/pick 2", state=state).conversation.messages("on")[1]["content"] == "c"
    for line, why in (
        ("/pick 1", "answer 1 is empty"),
        ("/pick 3", "the index must be from 0 to 2"),
        ("/pick -1", "from 0"),
    ):
        with pytest.raises(WrongUse, match=why):
            obey(line, state)


def test_an_empty_answer_does_not_go_on() -> None:
    assert answered("", "b").conversation.turns[0].picked == 1
    assert answered("", "").conversation.turns == ()


def test_retry_takes_the_turn_back_where_it_was_answered() -> None:
    outcome = obey("/retry", answered("a"))
    assert (outcome.ask, outcome.state.conversation.turns) == ("why", ())
    failed = State(START.settings, answered("a").conversation, "what")
    outcome = obey("/retry", failed)
    assert (outcome.ask, len(outcome.state.conversation.turns)) == ("what", 1)


def test_the_first_choices_of_a_body_are_left_to_the_server() -> None:
    body = Settings("m", n=1).body([{"role": "user", "content": "hi"}])
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }

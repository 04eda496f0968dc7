"""The commands of the prompt that begin with a slash: a word, and its argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from nproxy.cli.chat.conversation import Conversation
from nproxy.cli.chat.settings import WIDEST, Settings
from nproxy.cli.wrong_use import WrongUse


@dataclass(frozen=True, slots=True)
class State:
    """The state of a chat. prompt: the last one, which /retry asks again."""

    settings: Settings
    conversation: Conversation = field(default_factory=Conversation)
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command. text: what to show. ask: a prompt to ask now. over: the user wants to leave."""

    state: State
    text: str = ""
    ask: str | None = None
    over: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """A command. wants: its argument, for the help."""

    wants: str
    help: str
    obey: Callable[[State, str], Outcome]


def obey(line: str, state: State) -> Outcome:
    """Run a line that begins with a slash. Raises WrongUse."""
    name, _, rest = line.removeprefix("/").partition(" ")
    word = WORDS.get(name)
    if word is None:
        raise WrongUse(
            f"there is no /{name}; /help lists the commands, and a prompt that begins with a slash is typed with //"
        )
    return word.obey(state, rest.strip())


def _pick(state: State, given: str) -> Outcome:
    index = _number(int, given, "the index of an answer", 0, WIDEST)
    return Outcome(replace(state, conversation=state.conversation.picking(index)), f"continuing from answer {index}")


def _retry(state: State, given: str) -> Outcome:
    _nothing(given)
    if state.prompt is None:
        raise WrongUse("there is no prompt yet")
    turns = state.conversation.turns
    answered = bool(turns) and turns[-1].prompt == state.prompt
    again = state.conversation.without_last() if answered else state.conversation
    return Outcome(replace(state, conversation=again), ask=state.prompt)


def _clear(state: State, given: str) -> Outcome:
    _nothing(given)
    return Outcome(State(state.settings), "new conversation")


def _help(state: State, given: str) -> Outcome:
    _nothing(given)
    rows = [(f"/{name} {word.wants}".rstrip(), word.help) for name, word in WORDS.items()]
    keys = [("Ctrl-C", "stop the answer"), ("Ctrl-D", "quit"), ("\\ at a line's end", "continue on the next line")]
    return Outcome(state, "\n".join(f"{what:20}{text}" for what, text in [*rows, *keys]))


def _quit(state: State, given: str) -> Outcome:
    _nothing(given)
    return Outcome(state, over=True)


def _setting(name: str, change: Callable[[Settings, str], Settings]) -> Callable[[State, str], Outcome]:
    """Return a command that changes a setting; without an argument it only shows the value."""

    def obeyed(state: State, given: str) -> Outcome:
        settings = change(state.settings, given) if given else state.settings
        value = getattr(settings, name)
        shown = "the server's default" if value is None else value
        return Outcome(replace(state, settings=settings), f"{name.replace('_', ' ')}: {shown}")

    return obeyed


Number = TypeVar("Number", int, float)
Given = TypeVar("Given")


def _number(kind: Callable[[str], Number], given: str, what: str, least: float, most: float = math.inf) -> Number:
    try:
        number = kind(given)
    except ValueError:
        number = None
    if number is None or not math.isfinite(number) or not least <= number <= most:
        raise WrongUse(f"{what} is expected" + (f", from {least:g} to {most:g}" if most < math.inf else ""))
    return number


def _off_or(read: Callable[[str], Given], given: str) -> Given | None:
    return None if given == "off" else read(given)


def _nothing(given: str) -> None:
    if given:
        raise WrongUse("this command takes no argument")


def _n(settings: Settings, given: str) -> Settings:
    return replace(settings, n=_number(int, given, "a whole number", 1, WIDEST))


def _seed(settings: Settings, given: str) -> Settings:
    def read(given: str) -> int:
        return _number(int, given, "a whole number (or off)", -math.inf)

    return replace(settings, seed=_off_or(read, given))


def _temperature(settings: Settings, given: str) -> Settings:
    def read(given: str) -> float:
        return _number(float, given, "a number of at least 0 (or off)", 0)

    return replace(settings, temperature=_off_or(read, given))


def _max_tokens(settings: Settings, given: str) -> Settings:
    def read(given: str) -> int:
        return _number(int, given, "a whole number of at least 1 (or off)", 1)

    return replace(settings, max_tokens=_off_or(read, given))


def _system(settings: Settings, given: str) -> Settings:
    return replace(settings, system=_off_or(str, given))


WORDS = {
    "pick": Word("I", "continue from answer I instead of 0", _pick),
    "retry": Word("", "ask the last prompt again", _retry),
    "n": Word("N", "ask for N answers", _setting("n", _n)),
    "system": Word("TEXT|off", "set the system prompt", _setting("system", _system)),
    "seed": Word("S|off", "set the seed", _setting("seed", _seed)),
    "temperature": Word("T|off", "set the temperature", _setting("temperature", _temperature)),
    "max-tokens": Word("N|off", "set the maximum tokens per answer", _setting("max_tokens", _max_tokens)),
    "model": Word("ID", "use another model", _setting("model", lambda settings, given: replace(settings, model=given))),
    "clear": Word("", "start a new conversation", _clear),
    "help": Word("", "show this list", _help),
    "quit": Word("", "leave", _quit),
}

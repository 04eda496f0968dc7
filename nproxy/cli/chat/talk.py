"""The prompt: reads lines, asks and answers until the input ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from nproxy.cli.chat.answers import Answers
from nproxy.cli.chat.client import Client
from nproxy.cli.chat.columns import Columns
from nproxy.cli.chat.failed import ChatFailed
from nproxy.cli.chat.settings import Message, Settings
from nproxy.cli.chat.slash import WORDS, State, obey
from nproxy.cli.printable import printable
from nproxy.cli.wrong_use import WrongUse

PROMPT, GOES_ON = "> ", ". "
REMEMBERED = 1000
"""Maximum number of lines kept in the history."""
DRAWN_PER_SECOND = 12


def answered(client: Client, settings: Settings, messages: list[Message], console: Console) -> Answers:
    """Ask, show the answers while they grow, and then print all of them.

    Ctrl-C stops the request; what has come stays.
    """
    answers = Answers.of(settings.n, time.monotonic())
    with Live(Columns(answers, growing=True), console=console, transient=True, refresh_per_second=DRAWN_PER_SECOND):
        try:
            with contextlib.closing(client.ask(settings.body(messages))) as chunks:
                for chunk in chunks:
                    answers.take(chunk, time.monotonic())
        except KeyboardInterrupt:
            answers.stopped = True
        except ChatFailed as error:
            answers.broken = str(error)
    answers.ended = time.monotonic()
    if answers.begun:
        console.print(Columns(answers))
    return answers


@dataclass(slots=True)
class Talk:
    """A conversation with one server at a terminal."""

    client: Client
    console: Console
    state: State

    def run(self) -> None:
        """Read lines until Ctrl-D or /quit."""
        model = printable(self.state.settings.model)
        self._tell(f"{model} at {self.client.target}; /help lists the commands, Ctrl-D quits")
        over = False
        with _history():
            while not over:
                try:
                    line = _read()
                except KeyboardInterrupt:
                    self.console.print()
                except EOFError:
                    self.console.print()
                    over = True
                else:
                    over = self._hear(line.strip())

    def _hear(self, line: str) -> bool:
        """Handle a line; returns whether the user wants to leave."""
        try:
            line.encode()
        except UnicodeEncodeError:  # other bytes are read as lone surrogates
            self._tell("the line is not valid UTF-8", "red")
            return False
        if not line.startswith("/") or line.startswith("//"):
            self._ask(line.removeprefix("/") if line.startswith("//") else line)
            return False
        try:
            outcome = obey(line, self.state)
        except WrongUse as error:
            self._tell(str(error), "red")
            return False
        self.state = outcome.state
        if outcome.text:
            self._tell(outcome.text)
        if outcome.ask is not None:
            self._ask(outcome.ask)
        return outcome.over

    def _ask(self, prompt: str) -> None:
        if not prompt:
            return
        self.state = replace(self.state, prompt=prompt)
        conversation = self.state.conversation
        answers = answered(self.client, self.state.settings, conversation.messages(prompt), self.console)
        if (failure := answers.failure()) is not None:
            self._tell(failure, "red")
        texts = tuple(choice.text for choice in answers.choices)
        self.state = replace(self.state, conversation=conversation.answered(prompt, texts))

    def _tell(self, text: str, style: str = "dim") -> None:
        self.console.print(Text(text, style))


def _read() -> str:
    """Read one line, or several that are joined by a backslash at the end."""
    line = input(PROMPT)
    while line.endswith("\\"):
        line = line.removesuffix("\\") + "\n" + input(GOES_ON)
    return line


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Provide lines of earlier chats at the arrow keys, and completion of commands at the tab key.

    The history file is readable by this user only.
    """
    try:
        import readline  # imported only here, because it may write to the terminal at once
    except ImportError:  # a Python that was built without it
        yield
        return
    file = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "nproxy" / "chat_history"
    readline.set_completer(_complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(REMEMBERED)
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a chat works without a history
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)  # GNU readline would create it so, libedit would not
            readline.write_history_file(file)


def _complete(begun: str, number: int) -> str | None:
    found = [f"/{name} " for name in WORDS if begun.startswith("/") and f"/{name}".startswith(begun)]
    return found[number] if number < len(found) else None

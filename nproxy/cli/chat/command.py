"""`nproxy chat`: a conversation at a terminal; in a pipe, one prompt in and n answers out."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable
from dataclasses import replace

import click
from rich.console import Console

from nproxy.cli.chat import client as clients
from nproxy.cli.chat.answers import Answers
from nproxy.cli.chat.client import Client
from nproxy.cli.chat.columns import shown
from nproxy.cli.chat.conversation import Conversation
from nproxy.cli.chat.failed import ChatFailed
from nproxy.cli.chat.plain import Follower, as_json
from nproxy.cli.chat.settings import Message, Settings
from nproxy.cli.chat.slash import State
from nproxy.cli.chat.talk import Talk, answered
from nproxy.cli.target import parse_target
from nproxy.cli.wrong_use import STOPPED, WrongUse


def run(
    prompt: str | None, settings: Settings, *, url: str, api_key: str | None, seconds: float, json_form: bool
) -> int:
    """Chat; returns the exit code. settings.model: "" takes the first model that the server lists.

    Raises WrongUse and ChatFailed.
    """
    target = parse_target(url, api_key)
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not json_form
    if prompt is None and not at_terminal:
        prompt = _standard_input()
    if prompt is not None and not prompt.strip():
        raise WrongUse("the prompt is empty")
    with clients.opened(target, seconds) as client:
        console = Console(highlight=False)
        if prompt is None:
            Talk(client, console, State(_with_model(client, settings))).run()
            return 0
        messages = Conversation().messages(prompt)
        if at_terminal:
            answers = answered(client, _with_model(client, settings), messages, console)
        else:
            answers = _plainly(client, settings, messages, json_form=json_form)
    if (failure := answers.failure()) is not None:
        raise ChatFailed(failure)
    return STOPPED if answers.stopped else 0


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode().strip()
    except UnicodeDecodeError as error:
        raise WrongUse("the prompt is not valid UTF-8") from error


def _with_model(client: Client, settings: Settings) -> Settings:
    """Return the settings with a model: the first one that the server lists, if they name none. Raises ChatFailed."""
    if settings.model:
        return settings
    listed = client.models()
    if not listed:
        raise ChatFailed(f"{client.target} lists no models; name one with --model")
    return replace(settings, model=listed[0])


def _plainly(client: Client, settings: Settings, messages: list[Message], *, json_form: bool) -> Answers:
    """Write the answers as text while they arrive, or as JSON once they are complete or have failed."""
    answers = Answers.of(settings.n, time.monotonic())
    follower = Follower(answers)
    try:
        settings = _with_model(client, settings)
        answers.began = time.monotonic()
        with contextlib.closing(client.ask(settings.body(messages))) as chunks:
            for chunk in chunks:
                answers.take(chunk, time.monotonic())
                if not json_form:
                    _write(follower.news())
    except ChatFailed as error:
        answers.broken = str(error)
    answers.ended = time.monotonic()
    if not json_form:
        _write(follower.rest())
    else:
        click.echo(as_json(str(client.target), settings.model, answers))
    return answers


def _write(pieces: Iterable[str]) -> None:
    """Write text at once; on a terminal, without characters that would control it."""
    if text := "".join(pieces):
        text = shown(text) if sys.stdout.isatty() else text
        click.echo(text.encode("utf-8", "replace"), nl=False)

"""Answers in a pipe: one after the other as text, in the order of their indices, or all of them as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from nproxy.cli.chat.answers import Answers, Choice, Tokens
from nproxy.openai.jsonvalue import JSON

VERSION = 1
"""Increased when a key of the JSON is renamed or removed."""


@dataclass(slots=True)
class Follower:
    """Yields the text of the answers as it arrives: all of one choice before anything of the next."""

    answers: Answers
    _at: int = 0
    _given: int = 0

    def news(self) -> Iterator[str]:
        """Yield what can be written and was not yielded yet."""
        while self._at < len(self.answers.choices):
            choice = self.answers.choices[self._at]
            if self._given == 0 and (choice.text or choice.finish is not None):
                yield self._heading(choice)
            yield choice.text[self._given :]
            self._given = len(choice.text)
            if choice.finish is None:
                return
            yield from self._end(choice)

    def rest(self) -> Iterator[str]:
        """Yield what is left once the answers are over, including choices that did not end properly."""
        while self._at < len(self.answers.choices):
            yield from self.news()
            if self._at < len(self.answers.choices):
                choice = self.answers.choices[self._at]
                if choice.text:
                    yield from self._end(choice)
                else:
                    self._at += 1

    def _heading(self, choice: Choice) -> str:
        several = len(self.answers.choices) > 1
        return ("\n" if self._at else "") + f"--- choice {choice.index} ---\n" if several else ""

    def _end(self, choice: Choice) -> Iterator[str]:
        self._at, self._given = self._at + 1, 0
        if not choice.text.endswith("\n"):
            yield "\n"


def as_json(url: str, model: str, answers: Answers) -> str:
    """Return everything that is known of the answers, as one line of JSON.

    Seconds count from the request; `tokens` is exact if `tokens_exact` says so.
    """
    tokens = answers.tokens()
    document: dict[str, JSON] = {
        "chat": VERSION,
        "url": url,
        "model": model,
        "choices": [_choice(choice, tokens[choice.index], answers.began) for choice in answers.choices],
        "usage": None if answers.usage is None else answers.usage.to_json(),
        "seconds": None if answers.ended is None else round(answers.ended - answers.began, 3),
        "failure": answers.failure(),
    }
    return json.dumps(document)


def _choice(choice: Choice, tokens: Tokens, began: float) -> JSON:
    speed = choice.speed(tokens.number)
    return {
        "index": choice.index,
        "content": choice.text,
        "reasoning": choice.reasoning or None,
        "finish_reason": choice.finish,
        "error": choice.error,
        "tokens": tokens.number,
        "tokens_exact": tokens.exact,
        "first_token_seconds": None if choice.first is None else round(choice.first - began, 3),
        "tokens_per_second": None if speed is None else round(speed, 2),
    }

"""The turns of a conversation: one answer of each turn is picked to continue from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from nproxy.cli.chat.settings import Message
from nproxy.cli.wrong_use import WrongUse


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt, the answers to it, and the index of the picked answer."""

    prompt: str
    answers: tuple[str, ...]
    picked: int = 0


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns, in order."""

    turns: tuple[Turn, ...] = ()

    def messages(self, prompt: str) -> list[Message]:
        """Return the messages of the picked answers, and then the prompt."""
        messages: list[Message] = []
        for turn in self.turns:
            messages += [_message("user", turn.prompt), _message("assistant", turn.answers[turn.picked])]
        return [*messages, _message("user", prompt)]

    def answered(self, prompt: str, answers: tuple[str, ...]) -> Self:
        """Return the conversation with one more turn; the first answer that is not empty is picked.

        If all are empty, the conversation stays the same.
        """
        picked = next((index for index, answer in enumerate(answers) if answer), None)
        return self if picked is None else replace(self, turns=(*self.turns, Turn(prompt, answers, picked)))

    def picking(self, index: int) -> Self:
        """Return the conversation with another answer of the last turn picked. Raises WrongUse if it does not exist."""
        if not self.turns:
            raise WrongUse("there are no answers yet")
        *before, last = self.turns
        if not 0 <= index < len(last.answers):
            raise WrongUse(f"the index must be from 0 to {len(last.answers) - 1}")
        if not last.answers[index]:
            raise WrongUse(f"answer {index} is empty")
        return replace(self, turns=(*before, replace(last, picked=index)))

    def without_last(self) -> Self:
        """Return the conversation without the last turn."""
        return replace(self, turns=self.turns[:-1])


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}

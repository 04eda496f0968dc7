"""Turns of a conversation: of the answers to each, one goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from nproxy.cli.chat.settings import Message
from nproxy.cli.wrong_use import WrongUse


@dataclass(frozen=True, slots=True)
class Turn:
    """What was asked, what was answered, and the answer that goes on."""

    prompt: str
    answers: tuple[str, ...]
    picked: int = 0


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns, the last one last."""

    turns: tuple[Turn, ...] = ()

    def messages(self, prompt: str) -> list[Message]:
        """What was said along the picked answers, and then the prompt."""
        said: list[Message] = []
        for turn in self.turns:
            said += [_message("user", turn.prompt), _message("assistant", turn.answers[turn.picked])]
        return [*said, _message("user", prompt)]

    def answered(self, prompt: str, answers: tuple[str, ...]) -> Self:
        """With one more turn, of which the first answer that says anything goes on; the same where none does."""
        picked = next((index for index, answer in enumerate(answers) if answer), None)
        return self if picked is None else replace(self, turns=(*self.turns, Turn(prompt, answers, picked)))

    def picking(self, index: int) -> Self:
        """With another answer of the last turn going on. Raises WrongUse where there is no such answer."""
        if not self.turns:
            raise WrongUse("nothing was answered yet")
        *before, last = self.turns
        if not 0 <= index < len(last.answers):
            raise WrongUse(f"there are answers 0 to {len(last.answers) - 1}")
        if not last.answers[index]:
            raise WrongUse(f"answer {index} is empty")
        return replace(self, turns=(*before, replace(last, picked=index)))

    def without_last(self) -> Self:
        """Without the last turn."""
        return replace(self, turns=self.turns[:-1])


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}

"""best_of: of the choices that were brought for each prompt, the client gets the n likeliest.

A choice's score is the mean log probability of its own tokens. Servers that accept `best_of` today do nothing about it,
so nproxy does the work itself in front of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import inf

from nproxy.choices.commands import ChoiceFinished, Learn
from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.fold import fold, latest
from nproxy.choices.leg_output import Choice, LegOutput
from nproxy.choices.lessons import Lacks, Scores
from nproxy.choices.merge import Merge
from nproxy.choices.plan import NO_LOGPROBS
from nproxy.choices.reading import LegFault
from nproxy.choices.settings import Names
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.requests import CompletionRequest, Prompt, Request


class BestOf(Merge):
    """Merges `best_of` choices per prompt and shows the n best, the best first; of equals, the earlier one first.

    Log probabilities that the client did not ask for are left out. Usage counts every choice, shown or not.
    """

    _rates = True

    def __init__(self, request: Request, names: Names) -> None:
        super().__init__(request, names, n=request.drawn, logprobs=request.logprobs_asked)
        self._lacking = False
        self._scores: dict[int, float] = {}
        self._client_indices: dict[int, int] = {}  # of the choices that are shown; empty until the end

    def close(self) -> bytes:
        """Choose, and end the answer."""
        self._choose()
        self.notes.append(Learn(Scores()))
        return super().close()

    def _choose(self) -> None:
        n, drawn = self._request.n, self.legs.n
        for prompt in range(self._request.prompts):
            of_prompt = self._choices[prompt * drawn : (prompt + 1) * drawn]
            # the sort is stable: of equals, the earlier one comes first
            ranked = sorted(of_prompt, key=lambda choice: self._scores[choice.index], reverse=True)
            for index, choice in enumerate(ranked[:n], prompt * n):
                self._client_indices[choice.index] = index
                self.notes.append(ChoiceFinished(index, choice.finish_reason or "none"))

    def _score(self, choice: Choice) -> float:
        whole = fold([piece.delta for piece in choice.pieces])
        pieces = [piece.logprobs for piece in choice.pieces if isinstance(piece.logprobs, dict)]
        logprobs, echoed = latest(pieces) if pieces else None, self._echoed(choice)
        score = mean_logprob(logprobs, echoed)
        if score is not None:
            return score
        if not any(whole.values()) or only_echoed(logprobs, echoed):
            return -inf  # nothing was said, so there is nothing to score
        if (whole.get("content") or whole.get("text")) and not self._request.logprobs_asked and not self._lacking:
            self._lacking = True  # one request teaches it once
            self.notes.append(Learn(Lacks("logprobs")))
        raise LegFault(Failure(FailureKind.UNSCORED, NO_LOGPROBS))

    def _echoed(self, choice: Choice) -> Prompt | None:
        request = self._request
        if not isinstance(request, CompletionRequest) or not request.echo:
            return None
        return request.prompt[choice.index // self.legs.n]

    def _rate(self, output: LegOutput) -> None:
        for choice in output.choices:
            if choice.finished:
                self._scores[choice.index] = self._score(choice)

    def _shown_as(self, choice: Choice) -> Sequence[int]:
        return (self._client_indices[choice.index],) if choice.index in self._client_indices else ()


def mean_logprob(logprobs: JSON, echoed: Prompt | None = None) -> float | None:
    """Return the mean log probability of a choice's tokens; None if there are none, or some are larger than any float.

    Reads `{"content": [{"logprob"}], "refusal": ...}`, and the legacy `{"token_logprobs": [...]}`. echoed: the prompt,
    if it was asked to come back with the choice; its tokens are the same for all choices and do not count.
    """
    if not isinstance(logprobs, dict):
        return None
    token_logprobs = logprobs.get("token_logprobs")
    if isinstance(token_logprobs, list):
        counted: list[JSON] = token_logprobs[_prompt_tokens(logprobs, token_logprobs, echoed) :]
    else:
        lists = (logprobs.get(key) for key in ("content", "refusal"))
        entries = chain.from_iterable(entry for entry in lists if isinstance(entry, list))
        counted = [entry.get("logprob") for entry in entries if isinstance(entry, dict)]
    numbers = [value for value in counted if isinstance(value, int | float)]
    try:
        return sum(numbers) / len(numbers) if numbers else None
    except OverflowError:
        return None


def only_echoed(logprobs: JSON, echoed: Prompt | None) -> bool:
    """Whether log probabilities came, and all of them are an echoed prompt's: the choice has no token of its own."""
    token_logprobs = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(logprobs, dict) or not isinstance(token_logprobs, list) or not token_logprobs:
        return False
    return len(token_logprobs) <= _prompt_tokens(logprobs, token_logprobs, echoed)


def _prompt_tokens(logprobs: dict[str, JSON], token_logprobs: list[JSON], echoed: Prompt | None) -> int:
    """Return how many of the first tokens are the prompt's. The first token of an echoed prompt has no probability."""
    if echoed is None or not token_logprobs or token_logprobs[0] is not None:
        return 0
    if isinstance(echoed, list):
        return len(echoed)
    offsets = logprobs.get("text_offset")
    if not isinstance(offsets, list) or len(offsets) != len(token_logprobs):
        return 0
    counted = [offset for offset in offsets if isinstance(offset, int)]
    return sum(offset - counted[0] < len(echoed) for offset in counted)

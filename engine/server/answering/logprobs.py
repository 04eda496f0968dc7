"""Log probabilities in the API's formats: OpenAI's for chats and for legacy completions, and vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.messages import Logprobs
from engine.server.answering.output import ReportedToken
from engine.server.asking.output_options import OutputOptions
from engine.text.detokenizer import TokenBytes
from nproxy.openai.jsonvalue import JSON

_LOWEST = -9999.0  # stands for minus infinity, which JSON cannot express; OpenAI's and vLLM's number


@dataclass(frozen=True, slots=True)
class Spelling:
    """How tokens are written. The core may have returned more of the likeliest than this answer is to show."""

    table: TokenBytes
    output_options: OutputOptions

    def chat(self, reported: Sequence[ReportedToken]) -> JSON:
        """Return `logprobs` of a chat's choice, or of one of its chunks."""
        return {"content": self.entries(reported), "refusal": None}

    def entries(self, reported: Sequence[ReportedToken]) -> list[JSON]:
        """Return one entry for each token, as in chats and responses."""
        return [self._entry(one) for one in reported]

    def legacy(self, reported: Sequence[ReportedToken]) -> dict[str, list[JSON]]:
        """Return `logprobs` of a legacy completion's choice, or of one of its chunks; null for a prompt's
        first token.
        """
        return {
            "tokens": [self._text(one.token) for one in reported],
            "token_logprobs": [None if one.logprobs is None else _number(one.logprobs.own) for one in reported],
            "top_logprobs": [None if one.logprobs is None else self._likeliest(one) for one in reported],
            "text_offset": [one.offset for one in reported],
        }

    def prompt(self, tokens: Sequence[int], logprobs: Sequence[Logprobs | None]) -> JSON:
        """Return vLLM's `prompt_logprobs`: per token an object by token id, null for the first."""
        return [None if one is None else self._by_id(token, one) for token, one in zip(tokens, logprobs, strict=True)]

    def _entry(self, one: ReportedToken) -> dict[str, JSON]:
        logprobs = one.logprobs
        if logprobs is None:
            raise ValueError(f"the core has reported no log probability of token {one.token}")
        top: list[JSON] = [self._scored(token, score) for token, score in logprobs.top[: self.output_options.logprobs]]
        return {**self._scored(one.token, logprobs.own), "top_logprobs": top}

    def _scored(self, token: int, logprob: float) -> dict[str, JSON]:
        piece = self.table.spelling(token)
        text = f"token_id:{token}" if self.output_options.as_ids else piece.decode(errors="backslashreplace")
        return {"token": text, "logprob": _number(logprob), "bytes": list(piece)}

    def _likeliest(self, one: ReportedToken) -> dict[str, JSON]:
        """Return the likeliest tokens and the token itself, if it is not among them."""
        logprobs = one.logprobs
        if logprobs is None:
            return {}
        found: dict[str, JSON] = {}
        for token, score in (*logprobs.top[: self.output_options.logprobs], (one.token, logprobs.own)):
            found.setdefault(self._text(token), _number(score))
        return found

    def _by_id(self, token: int, logprobs: Logprobs) -> dict[str, JSON]:
        ranked = [(token, logprobs.own, logprobs.rank)]
        likeliest = enumerate(logprobs.top[: self.output_options.prompt_logprobs], 1)
        ranked += [(other, score, rank) for rank, (other, score) in likeliest if other != token]
        return {
            str(one): {"logprob": _number(score), "rank": rank, "decoded_token": self._text(one)}
            for one, score, rank in ranked
        }

    def _text(self, token: int) -> str:
        """A token that is no text by itself is written as its bytes, as OpenAI's legacy completions write them."""
        if self.output_options.as_ids:
            return f"token_id:{token}"
        piece = self.table.spelling(token)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + piece.decode(errors="backslashreplace")


def _number(logprob: float) -> float:
    return max(logprob, _LOWEST)

"""What a scripted upstream says: the answer to one call, whole or in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.behaviour import MODEL, Behaviour, Piece

PROMPT_TOKENS = 5


class Answer:
    """The answer to one call with this body. Choice j of a call with seed s says `pieces(s + j)`."""

    def __init__(self, behaviour: Behaviour, body: Mapping[str, Any], *, chat: bool, id: str) -> None:
        self.behaviour = behaviour
        self.chat = chat
        self.streamed = bool(body.get("stream"))
        self.model = body.get("model", MODEL)
        self.seed = body.get("seed") or 0
        asked = body.get("n") or 1
        width = min(asked, behaviour.width or asked) if behaviour.n == "native" else 1
        prompt = body.get("prompt")
        listed = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
        prompts = prompt if listed and isinstance(prompt, list) else [prompt]
        self.echoed = [str(one) if body.get("echo") else "" for one in prompts for _ in range(width)]
        self.seeds = [self.seed + j for _ in prompts for j in range(width)]
        self.want_usage = (body.get("stream_options") or {}).get("include_usage", False)
        asks = body.get("logprobs")
        self.logprobs = asks is not None and asks is not False and behaviour.logprobs
        self.top = {"id": id, "created": 1, "model": self.model, "system_fingerprint": "fp"}

    def whole(self) -> Any:
        """The answer in JSON form."""
        choices = []
        for index, seed in enumerate(self.seeds):
            pieces = self._pieces(index)
            held = {"message": {"role": "assistant", **_folded(pieces)}} if self.chat else {"text": _text(pieces)}
            logprobs = self._logprobs([_text([piece]) for piece in pieces], echoed=bool(self.echoed[index]))
            choices.append({"index": index, **held, "logprobs": logprobs, "finish_reason": self._finish(seed)})
        kind = "chat.completion" if self.chat else "text_completion"
        answer = {**self.top, "object": kind, "choices": choices}
        if self.behaviour.usage:
            answer["usage"] = self.usage()
        return self.behaviour.whole_quirk(answer) if self.behaviour.whole_quirk is not None else answer

    def chunks(self) -> list[Any]:
        """The answer as a stream: one choice in each chunk, the choices in turn."""
        chunks = []
        if self.chat and self.behaviour.role:
            for index in range(len(self.seeds)):
                chunks.append(self._chunk(index, {"role": "assistant", "content": ""}))
        pieces = [self._pieces(index) for index in range(len(self.seeds))]
        for at in range(max(map(len, pieces))):
            for index, said in enumerate(pieces):
                if at < len(said):
                    piece = said[at]
                    delta = {"content": piece} if isinstance(piece, str) else piece
                    chunks.append(self._chunk(index, delta, echoed=at == 0 and bool(self.echoed[index])))
        for index, seed in enumerate(self.seeds):
            if (reason := self._finish(seed)) is not None:
                chunks.append(self._chunk(index, {}, reason))
        if self.behaviour.usage and self.want_usage:
            kind = "chat.completion.chunk" if self.chat else "text_completion"
            chunks.append({**self.top, "object": kind, "choices": [], "usage": self.usage()})
        return self.behaviour.quirk(chunks) if self.behaviour.quirk is not None else chunks

    def usage(self) -> dict[str, Any]:
        """The usage: PROMPT_TOKENS for the prompt, and a token for every piece."""
        if callable(self.behaviour.usage):
            return self.behaviour.usage(self.seeds)
        completion = sum(len(self.behaviour.pieces(seed)) for seed in self.seeds)
        return usage(PROMPT_TOKENS, completion)

    def _pieces(self, index: int) -> list[Piece]:
        echoed = [self.echoed[index]] if self.echoed[index] else []
        return [*echoed, *self.behaviour.pieces(self.seeds[index])]

    def _finish(self, seed: int) -> str | None:
        finish = self.behaviour.finish
        return finish(seed) if callable(finish) else finish

    def _chunk(
        self, index: int, delta: dict[str, Any], finish: str | None = None, *, echoed: bool = False
    ) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": delta} if self.chat else {"text": delta.get("content", "")}
        logprobs = self._logprobs([_text([delta])], echoed=echoed) if delta and "role" not in delta else None
        choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": finish}
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self.top, "object": kind, "choices": [choice]}

    def _logprobs(self, tokens: list[str], *, echoed: bool) -> dict[str, Any] | None:
        """A log probability for each piece. In legacy streams, the offsets start at 0 in each chunk."""
        if not self.logprobs:
            return None
        if self.chat:
            content = [{"token": t, "logprob": -0.5, "bytes": list(t.encode()), "top_logprobs": []} for t in tokens]
            return {"content": content, "refusal": None}
        scores = [None if echoed and place == 0 else -0.5 for place in range(len(tokens))]
        offsets = [sum(map(len, tokens[:place])) for place in range(len(tokens))]
        return {"tokens": tokens, "token_logprobs": scores, "top_logprobs": None, "text_offset": offsets}


def usage(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    """A usage object."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**counts, **details}


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece if isinstance(piece, str) else str(piece.get("content") or "") for piece in pieces)


def _folded(pieces: Sequence[Piece]) -> dict[str, Any]:
    """The message that these deltas add up to, as a server would assemble it."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    texts: dict[str, list[str]] = {}
    for piece in pieces:
        members: dict[str, Any] = {"content": piece} if isinstance(piece, str) else piece
        for key, value in members.items():
            if key == "tool_calls":
                for call in value:
                    _add_call(calls, call)
            elif isinstance(value, str):
                message[key] = ""
                texts.setdefault(key, []).append(value)
            else:
                message[key] = value
                texts.pop(key, None)
    message.update((key, "".join(parts)) for key, parts in texts.items())
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"content": None, **message}


def _add_call(calls: dict[int, dict[str, Any]], call: dict[str, Any]) -> None:
    known = calls.setdefault(call["index"], {"id": call.get("id"), "type": "function", "function": {"arguments": ""}})
    function = call.get("function", {})
    known["function"]["arguments"] += function.get("arguments", "")
    if "name" in function:
        known["function"]["name"] = function["name"]

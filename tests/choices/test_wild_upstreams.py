"""Whatever upstreams say, in whatever order, under whatever settings: the invariants of `Play` hold, and it ends."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.events import Event, Failure, FailureKind, LegBody, LegChunk, LegEnded, LegFailed, Stopped
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError
from tests.choices.conduct_player import Play, chat, completion
from tests.choices.upstream_says import DONE, failure, status, usage

SEEDS = 20
PLAYS = 50
"""Of each seed; each takes some 5 ms."""
MOST_EVENTS = 200

KEYS = (
    *("index", "id", "type", "function", "custom", "name", "arguments", "input", "content", "text", "refusal", "role"),
    *("tool_calls", "function_call", "reasoning", "logprobs", "tokens", "token_logprobs", "text_offset", "logprob"),
    *("finish_reason", "delta", "message", "usage", "prompt_tokens", "completion_tokens", "error", "obfuscation", "x"),
)
PLAIN: tuple[Any, ...] = (None, True, False, 0, 1, -1, 2**70, 1.5, 1e308, "", "a", "b\n", "\ud800", "é", "stop", [], {})
REFUSALS = tuple(
    json.dumps({"error": {"message": message, "param": param}}).encode()
    for message, param in (("n must be 1", "n"), ("unknown field", "seed"), ("prompt must be a string", None), ("", ""))
)
BEFORE_ITS_ANSWER = frozenset(FailureKind) - {FailureKind.STATUS}
IN_ITS_ANSWER = frozenset({FailureKind.CUT, FailureKind.TIMEOUT, FailureKind.MALFORMED, FailureKind.OVERSIZE})


class Wild:
    """Draws requests, settings, and all that upstreams say; most of it makes sense."""

    def __init__(self, seed: int) -> None:
        self.drawn = Random(seed)

    def rarely(self, share: float = 0.05) -> bool:
        return self.drawn.random() < share

    def junk(self, depth: int = 0) -> Any:
        if depth > 2 or self.rarely(0.5):
            return self.drawn.choice(PLAIN)
        several = range(self.drawn.randint(0, 3))
        if self.rarely(0.5):
            return [self.junk(depth + 1) for _ in several]
        return {self.drawn.choice(KEYS): self.junk(depth + 1) for _ in several}

    def one_of(self, *values: Any) -> Any:
        return self.junk() if self.rarely(0.03) else self.drawn.choice(values)

    # ---- what is asked for

    def play(self) -> Play:
        """Begin a play. Raises ApiError for a request that is refused."""
        chats, stream, n = self.rarely(0.6), self.rarely(0.6), self.drawn.choice((1, 1, 2, 3))
        fields: dict[str, Any] = {"n": n, "stream": stream, "logprobs": (True if chats else 1)}
        fields |= {"seed": 5, "temperature": 0, "echo": True, "best_of": n + self.drawn.randint(0, 2)}
        fields |= {"stream_options": {"include_usage": self.rarely(0.5), "continuous_usage_stats": self.rarely(0.5)}}
        fields |= {"prompt": ["p"] * self.drawn.randint(1, 3)}
        for name in ("logprobs", "seed", "temperature", "echo", "best_of", "stream_options", "prompt"):
            wrong = (stream and name == "best_of") or (not stream and name == "stream_options")
            if wrong or (chats and name in ("echo", "prompt")) or self.rarely(0.7):
                del fields[name]
        choose = self.drawn.choice
        capability = Capability(
            native_width=choose((1, 1, None, 2)),
            n_untested=self.rarely(0.3),
            exact=self.rarely(0.15),
            stream_n=self.rarely(0.8),
            json_usage=self.rarely(0.7),
            prefix_cache=self.rarely(0.3),
            prompt_lists=self.rarely(0.6),
            parallel=choose((None, None, 1, 2)),
            model=choose((None, None, "up")),
            seed_refused=self.rarely(0.1),
        )
        return Play(
            (chat if chats else completion)(**fields),
            capability,
            retries=self.drawn.randint(0, 3),
            partial=self.rarely(0.3),
            fallback=self.rarely(0.3),
            resume=choose(("off", "replay", "continue")),
            chat_continues=choose(("no", "flag", "trailing")),
            greedy=choose(("accept", "dedupe")),
        )

    # ---- what upstreams say

    def said(self, width: int, *, chats: bool, whole: bool = False) -> bytes:
        """A chunk, or a whole answer."""
        several = self.drawn.randint(0, width + 1) if whole else self.drawn.choice((0, 1, 1, 1, 1, 2))
        came: dict[str, Any] = {"id": "u", "object": "x", "created": self.one_of(1, 2, None), "model": "up"}
        came["choices"] = [self._choice(width, chats=chats, whole=whole) for _ in range(several)]
        if self.rarely(0.25):
            counted = usage(self.drawn.randint(0, 9), self.drawn.randint(0, 9))
            came["usage"] = self.one_of(counted, None, {**counted, "cost": 0.5, "details": self.junk()})
        if self.rarely():
            came[self.drawn.choice(KEYS)] = self.junk()
        return json.dumps(came).encode()

    def _choice(self, width: int, *, chats: bool, whole: bool) -> dict[str, Any]:
        finish = self.one_of(None, None, None, "stop", "length", "tool_calls", "")
        choice = {"index": self.one_of(*range(width), 0, None, width), "finish_reason": finish}
        if self.rarely(0.6):
            choice["logprobs"] = self.one_of(self._logprobs(chats=chats), None)
        if chats:
            choice["message" if whole else "delta"] = self.one_of(self._delta())
        else:
            choice["text"] = self.one_of("a", "b", "", None)
        if self.rarely(0.1):
            choice[self.drawn.choice(KEYS)] = self.junk()
        return choice

    def _delta(self) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if self.rarely(0.7):
            delta["content"] = self.one_of("a", "b", "", "cd", None, "\ud83d", [{"type": "text", "text": "e"}])
        if self.rarely(0.2):
            delta["role"] = self.one_of("assistant", None, "")
        if self.rarely(0.2):
            delta["tool_calls"] = [self._call() for _ in range(self.drawn.randint(0, 2))]
        if self.rarely(0.1):
            delta["reasoning"] = self.one_of("r", None)
        if self.rarely():
            delta[self.drawn.choice(KEYS)] = self.junk()
        return delta

    def _call(self) -> dict[str, Any]:
        function = {"name": self.one_of("f", "g", "", None), "arguments": self.one_of("", "{", "}", None)}
        parts = {"index": self.one_of(0, 1, 2, None), "id": self.one_of("a", "b", None, ""), "function": function}
        return {name: part for name, part in parts.items() if self.rarely(0.8)}

    def _logprobs(self, *, chats: bool) -> dict[str, Any]:
        numbers = [self.one_of(-1.0, None, 0, -9999.0) for _ in range(self.drawn.randint(0, 2))]
        if chats:
            return {"content": [{"token": "a", "logprob": number} for number in numbers]}
        offsets = [self.drawn.choice((0, 1, 2, 5)) for _ in numbers]
        return {"tokens": ["a"] * len(numbers), "token_logprobs": numbers, "text_offset": offsets}

    def failure(self, *, spoken: bool) -> Failure:
        """Why a call failed. spoken: part of its answer had come."""
        if spoken or self.rarely(0.5):
            return failure(self.drawn.choice(sorted(IN_ITS_ANSWER if spoken else BEFORE_ITS_ANSWER)))
        code = self.drawn.choice((400, 401, 422, 429, 500, 503))
        refused = status(code, self.drawn.choice((b"", *REFUSALS)), retry_after=self.drawn.choice((None, 1, 20)))
        return replace(refused, room=self.drawn.choice(("", "siblings", "others", "elsewhere")))

    def events(self, play: Play, leg: int, *, spoken: bool) -> list[Event]:
        """What one call brings next."""
        chats, width = play.request.dialect is Dialect.CHAT, play.open[leg].leg.choices(play.request.prompts)
        kind = self.drawn.random()
        if kind < 0.6:
            return [LegChunk(leg, self.said(width, chats=chats)) for _ in range(self.drawn.randint(1, 3))]
        if kind < 0.66:
            return [LegChunk(leg, DONE)]
        if kind < 0.7 and not spoken:
            return [LegBody(leg, self.said(width, chats=chats, whole=True)), LegEnded(leg)]
        if kind < 0.75:
            return [LegChunk(leg, json.dumps(self.junk()).encode(), self.drawn.choice(("", "error")))]
        if kind < 0.87:
            return [LegEnded(leg, self.rarely(0.2))]
        return [LegFailed(leg, self.failure(spoken=spoken))]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_invariants_hold_whatever_upstreams_say(seed: int) -> None:
    wild = Wild(seed)
    for _ in range(PLAYS):
        try:
            play = wild.play()
        except ApiError:
            continue
        spoken: set[tuple[int, int]] = set()
        for _ in range(MOST_EVENTS):
            if play.over:
                break
            legs, timers = sorted(play.open), sorted(play.timers)
            assert legs or timers, "nothing can happen any more"
            if timers and (not legs or wild.rarely(0.15)):
                play.fires(wild.drawn.choice(timers))
                continue
            leg = wild.drawn.choice(legs)
            call = leg, play.open[leg].attempt
            events = wild.events(play, leg, spoken=call in spoken)
            spoken |= {call for event in events if isinstance(event, LegChunk)}
            play.gets(*events)
        else:
            play.gets(Stopped())
        assert play.over

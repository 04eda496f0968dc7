"""A server as a plain function from question to reply, with the habits of real ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nproxy.cli.probe import tools
from nproxy.cli.probe.findings import Report
from nproxy.cli.probe.interview import Plan, conduct, interview
from nproxy.cli.probe.questions import Beside, Get, Leave, Post, Question, Reply, Together

MODEL = "pretend"
PLAN = Plan(nonce="nonce")


def reply(value: object, status: int = 200) -> Reply:
    return Reply(status, {"content-type": "application/json"}, json.dumps(value).encode())


def refusal(message: str, status: int = 400) -> Reply:
    return reply({"error": {"message": message, "type": "invalid_request_error"}}, status)


def n_of(body: Mapping[str, Any]) -> int:
    n: int = body.get("n", 1)
    return n


@dataclass
class Pretend:
    """By default a server that does everything right and tells nothing beside its answers."""

    widest: int = 10_000
    over: Literal["refuse", "fewer", "fail"] = "refuse"
    wording: str = "too many"  # of a refused n
    greedy_n: bool = True
    refuse: Mapping[str, str] = field(default_factory=dict)  # fields, with the message of their 400
    ignore: tuple[str, ...] = ()  # fields that change nothing
    same_seed: bool = False  # all choices of a call share their seed
    tool_choices: tuple[Any, ...] = tuple(tools.CHOICES.values())
    prompt_lists: Literal["all", "first", "break", "die", "whole"] = "all"
    stream_n: Literal["all", "breaks", "empty", "unfinished", "mixed"] = "all"
    room: int = 10_000  # calls at once
    room_for_long_ones: int | None = None  # the same, where more than one token is asked for
    one_seed: bool = False  # what is asked at the same time has one seed
    fixed_seed: bool = False  # a call without a seed always has the same one
    draws: Literal["always", "never", "specially"] = "always"
    counts: Literal["all", "one"] = "all"
    finish: str | None = "length"
    usage: Literal["tail", "tails", "rider", "both", "none"] = "tail"
    roles: Literal["first", "reversed", "late", "none", "twice"] = "first"
    ids: Literal["one", "many"] = "one"
    done: bool = True
    cuts: bool = False  # a stream ends when another request comes
    cached: int | None = None
    paths: tuple[str, ...] = ("/chat/completions", "/completions")
    gets: Mapping[str, Iterator[Reply]] = field(default_factory=dict)
    listed: Reply | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    asked: list[Question] = field(default_factory=list)
    dead: bool = False
    serial: Iterator[int] = field(default_factory=lambda: itertools.count(1000))

    def probe(self, plan: Plan = PLAN) -> Report:
        return conduct("http://pretend/v1", interview(plan), self)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [dict(question.body) for question in self.asked if isinstance(question, Post)]

    def __call__(self, question: Question) -> Reply:
        self.asked.append(question)
        match question:
            case Get(path="/models"):
                return self.listed or reply({"data": [{"id": MODEL}, {"id": "another"}]})
            case Get() | Leave(watch=Get()):
                get = question if isinstance(question, Get) else question.watch
                return next(self.gets.get(get.path, iter(())), refusal("no such path", 404))
            case Beside(post, other):
                whole = self(post)
                self.asked.remove(post)
                self(other)
                self.asked.remove(other)
                return replace(whole, body=b"".join(whole.body.partition(b"\n\n")[:2])) if self.cuts else whole
            case Together(posts):
                seed = {"seed": 5} if self.one_seed else {}
                full = refusal("server busy, please try again", 503)
                room = self.room
                if self.room_for_long_ones is not None and posts[0].body["max_tokens"] != 1:
                    room = self.room_for_long_ones
                before = len(self.asked)
                first, *others = [
                    self(replace(one, body={**one.body, **seed})) if place < room else full
                    for place, one in enumerate(posts)
                ]
                del self.asked[before:]
                return replace(first, others=others)
            case Post():
                answer = self._post(question)
                return replace(answer, headers={**answer.headers, **self.headers})

    def _post(self, post: Post) -> Reply:
        sent: Any = post.body.get("prompt", "")
        self.dead |= self.prompt_lists == "die" and not isinstance(sent, str) and isinstance(sent[0], str)
        if self.dead:
            return refusal("generation thread died", 404)
        body: dict[str, Any] = {name: value for name, value in post.body.items() if name not in self.ignore}
        for name, message in self.refuse.items():
            if name in body:
                return refusal(message)
        if post.path not in self.paths:
            return refusal("no such path", 404)
        n = n_of(body)
        if n > 1 and body["temperature"] == 0 and not self.greedy_n:
            return refusal("n must be 1 when using greedy sampling")
        if n > self.widest:
            if self.over != "fewer":
                return refusal(self.wording, 400 if self.over == "refuse" else 503)
            n = self.widest
        prompt = body.get("prompt", "")
        prompts = prompt if isinstance(prompt, list) and isinstance(prompt[0], str) else [prompt]
        if len(prompts) > 1 and (self.prompt_lists == "break" or (self.prompt_lists == "whole" and body.get("stream"))):
            return refusal("Internal Server Error", 500)
        if self.prompt_lists == "first":
            prompts = prompts[:1]
        texts = [self._text(body, j, one) for one in prompts for j in range(n)]
        chat = post.path == "/chat/completions"
        tokens = body.get("max_tokens") or body["max_completion_tokens"]
        return self._stream(body, texts, tokens, chat) if body.get("stream") else self._whole(body, texts, tokens, chat)

    def _text(self, body: dict[str, Any], choice: int, prompt: object) -> str:
        echoed = f"{prompt}" if body.get("echo") else ""
        special = "generation_config" in body
        if body["temperature"] == 0 or self.draws == "never" or (self.draws == "specially" and not special):
            return f"{echoed} greedy"
        seed = body.get("seed", 0 if self.fixed_seed else next(self.serial))
        return f"{echoed} drawn {seed + (0 if self.same_seed else choice)}"

    def _usage(self, choices: int, tokens: int) -> dict[str, Any]:
        completion = tokens * (choices if self.counts == "all" else 1)
        details = {} if self.cached is None else {"prompt_tokens_details": {"cached_tokens": self.cached}}
        return {"prompt_tokens": 40, "completion_tokens": completion, "total_tokens": 40 + completion, **details}

    def _whole(self, body: dict[str, Any], texts: list[str], tokens: int, chat: bool) -> Reply:
        def choice(index: int, text: str) -> dict[str, Any]:
            said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            logprobs = {"content": [{"token": text}]} if chat else {"tokens": [text]}
            asked = {"logprobs": logprobs} if body.get("logprobs") else {}
            if chat and body.get("tool_choice") in self.tool_choices:
                function = {"name": body["tools"][0]["function"]["name"], "arguments": "{}"}
                call = {"id": f"c{index}", "type": "function", "function": function}
                said = {"message": {"role": "assistant", "content": None, "tool_calls": [call]}}
            return {"index": index, **said, **asked, "finish_reason": self.finish}

        choices = [choice(index, text) for index, text in enumerate(texts)]
        usage = {} if self.usage == "none" else {"usage": self._usage(len(texts), tokens)}
        return reply({"id": "x", "choices": choices, **usage})

    def _stream(self, body: dict[str, Any], texts: list[str], tokens: int, chat: bool) -> Reply:
        if n_of(body) > 1 and self.stream_n == "breaks":
            return Reply(0, failure="broke off: the connection was closed")
        if n_of(body) > 1 and self.stream_n == "empty":
            return Reply(200, {"content-type": "text/event-stream"}, b"data: [DONE]\n\n")
        if self.stream_n == "mixed":
            texts = ["".join(texts)]
        asked = bool((body.get("stream_options") or {}).get("include_usage")) and self.usage != "none"
        chunks: list[dict[str, Any]] = []

        def chunk(index: int, delta: dict[str, Any], finish: str | None = None, **more: Any) -> None:
            said: dict[str, Any] = {"delta": delta} if chat else {"text": delta.get("content", "")}
            identity = f"x{index}" if self.ids == "many" else "x"
            chunks.append({"id": identity, "choices": [{"index": index, **said, "finish_reason": finish}], **more})

        role = {"role": "assistant"}
        order = list(range(len(texts)))
        if self.roles in ("first", "twice"):
            for index in order:
                chunk(index, role)
        if self.roles == "reversed":
            for index in reversed(order):
                chunk(index, role)
        for index in order:
            chunk(index, {**(role if self.roles in ("late", "twice") else {}), "content": texts[index]})
        for index in order:
            riding = {"usage": self._usage(1, tokens)} if asked and self.usage in ("rider", "both") else {}
            chunk(index, {}, None if index and self.stream_n == "unfinished" else self.finish, **riding)
        if asked and self.usage in ("tail", "both"):
            chunks.append({"id": "x", "choices": [], "usage": self._usage(len(texts), tokens)})
        if asked and self.usage == "tails":
            chunks += [{"id": "x", "choices": [], "usage": self._usage(1, tokens)} for _ in texts]
        events = [json.dumps(one) for one in chunks] + (["[DONE]"] if self.done else [])
        return Reply(200, {"content-type": "text/event-stream"}, "".join(f"data: {one}\n\n" for one in events).encode())

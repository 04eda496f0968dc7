"""The cases: what a client of nproxy can rely on, whatever server is behind it. Each is one small function.

A case raises AssertionError if this does not hold, and NotApplicable if it makes no sense for this server. Its
docstring says what holds; docs/compatibility.md prints it. Its rows are those of docs/conformance.md, where scripted
servers show the same.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import httpx

from nproxy.cli.probe.table import TITLES
from nproxy.cli.probe.tools import CHOICES, NAME, QUESTION, TOOL
from nproxy.cli.probe.tools import TOKENS as TOOL_TOKENS
from tests.clients import lines_of
from tests.compatibility.deployment import TOKENS, Deployment, NotApplicable
from tests.compatibility.record import SETTINGS, Setting

SEED = 4200
N = 4
LONG_TOKENS = 400
GONE_SECONDS = 1.0
LOOK_SECONDS = 0.02
COUNTING = ("One, two, three, four, five, six,", "Monday, Tuesday, Wednesday, Thursday,")
"""Prompts with so clear a continuation that, at a temperature near 0, a choice begins like the server's own answer."""

Usage = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A case."""

    name: str
    holds: str
    """What holds if the case passes."""
    rows: tuple[str, ...]
    """Rows of docs/conformance.md."""
    needs: tuple[str, ...]
    """Facts of the probe without which the case makes no sense, as `section.fact`."""
    settings: tuple[Setting, ...]
    """The settings that the case is about."""
    play: Callable[[Deployment], Awaitable[None]]

    def why_not(self, deployed: Deployment) -> str | None:
        """Return why the case makes no sense for this server; None if it does."""
        for need in ("chat.available", *self.needs):
            finding = deployed.finding(need)
            if finding.verdict == "no" and finding.value is None:  # a value names a way that works
                return f"{TITLES[need.partition('.')[0]]}: {finding.how}"
        return None


CASES: dict[str, Case] = {}


def case(
    *rows: str, needs: tuple[str, ...] = (), settings: tuple[Setting, ...] = SETTINGS
) -> Callable[[Callable[[Deployment], Awaitable[None]]], Callable[[Deployment], Awaitable[None]]]:
    """Add a function to the table of cases."""

    def put(play: Callable[[Deployment], Awaitable[None]]) -> Callable[[Deployment], Awaitable[None]]:
        name = play.__name__.replace("_", " ")
        CASES[name] = Case(name, (play.__doc__ or "").strip(), rows, needs, settings, play)
        return play

    return put


@case("C1", "C2", "C3")
async def choices(deployed: Deployment) -> None:
    """n = 4 returns four choices in order, each with role and finish_reason, and the model under the client's name."""
    told = await deployed.whole(N)
    assert told.answer["model"] == deployed.alias, f"the model is called {told.answer['model']!r}"
    assert any(told.texts.values()), "no choice has text"


@case("Q4", "A2", settings=("native", "fanout"))
async def calls(deployed: Deployment) -> None:
    """A server that supports n gets one call for four choices; with fan-out it gets four calls without n."""
    before = len(deployed.counts.calls)
    await deployed.whole(N)
    made = deployed.counts.calls[before:]
    carried = [call.get("n") for call in made]
    expected = [None] * N if deployed.setting == "fanout" else [N]
    assert carried == expected, f"the calls carried {carried} for n"


@case("D1", "D2", "D4", "D5", "D9", needs=("chat.stream",))
async def streams(deployed: Deployment) -> None:
    """A stream has one role per choice first, in order, one id, one finish per choice, and [DONE] last."""
    told = await deployed.stream(N)
    assert told.order[:N] == list(range(N)), f"the first chunks are of the choices {told.order[:N]}"
    assert all(voice.role == "assistant" for voice in told.voices), "a choice has no role"


@case("D16", "B1", needs=("chat.stream", "chat.seed"))
async def streams_say_the_same(deployed: Deployment) -> None:
    """With a seed, each choice has the same text in a stream as in a whole answer."""
    await _steady(deployed)
    streamed, whole = await deployed.stream(N, seed=SEED), await deployed.whole(N, seed=SEED)
    assert streamed.texts == whole.texts, f"{streamed.texts} streamed, {whole.texts} whole"


@case("E1", needs=("chat.usage",))
async def usage(deployed: Deployment) -> None:
    """The prompt counts once, and the tokens of all choices are summed."""
    control = await deployed.alone()
    told = await deployed.whole(N)
    _check_usage(told.usage, told.finishes, control.usage if control else None)


@case("E7", "E8", needs=("chat.stream_usage",))
async def usage_in_streams(deployed: Deployment) -> None:
    """Requested usage comes once, in the last chunk, with the same counts; otherwise a stream has no usage."""
    control = await deployed.alone()
    told = await deployed.stream(N, include_usage=True)
    assert told.chunks[-1]["choices"] == [], "the last chunk is not the usage"
    _check_usage(told.usage, told.finishes, control.usage if control else None)
    await deployed.stream(N)


@case("B1", needs=("chat.seed",))
async def the_same_seed_again(deployed: Deployment) -> None:
    """A repeated request with a seed returns the same choices, and these differ from each other."""
    await _steady(deployed)
    first, again = await deployed.whole(N, seed=SEED), await deployed.whole(N, seed=SEED)
    assert first.texts == again.texts, f"{first.texts}, then {again.texts}"
    assert len(set(first.texts.values())) == N, f"some choices are equal: {first.texts}"


@case("B1", needs=("chat.seed",))
async def seed_plus_i(deployed: Deployment) -> None:
    """Choice i of a request with seed s equals the server's own answer to a single request with seed s + i."""
    await _steady(deployed)
    told = await deployed.whole(N, seed=SEED)
    alone = await deployed.seeded(SEED, N)
    assert list(told.texts.values()) == alone, f"{list(told.texts.values())}, alone {alone}"


@case("B2", needs=("chat.sampling",))
async def no_seed(deployed: Deployment) -> None:
    """Without a seed the choices differ, even if the server's default seed is constant."""
    told = await deployed.whole(N)
    assert len(set(told.texts.values())) > 1, f"all choices are equal: {told.texts[0]!r}"


@case("A14")
async def greedy(deployed: Deployment) -> None:
    """n = 2 at temperature 0 returns two choices, even from a server that refuses it."""
    await deployed.whole(2, temperature=0)


@case("I1", "I2")
async def stop(deployed: Deployment) -> None:
    """A stop string ends each choice, with finish_reason stop."""
    whole = await deployed.alone(temperature=0, max_tokens=3 * TOKENS)
    words = whole.texts[0].split() if whole else []
    word = next((word for word in words[1:] if len(word) > 2), None)
    if word is None:
        raise NotApplicable("the model says too little")
    control = await deployed.alone(temperature=0, max_tokens=3 * TOKENS, stop=[word])
    if control is None or _goes_on(control.texts[0], word) or control.finishes[0] != "stop":
        raise NotApplicable("the server does not heed stop")
    told = await deployed.whole(2, temperature=0, max_tokens=3 * TOKENS, stop=[word])
    assert not any(_goes_on(text, word) for text in told.texts.values()), f"they go on behind {word!r}: {told.texts}"
    assert set(told.finishes.values()) == {"stop"}, f"the reasons are {told.finishes}"


@case("F1", needs=("chat.logprobs",))
async def logprobs(deployed: Deployment) -> None:
    """Every choice has its own log probabilities."""
    told = await deployed.whole(N, logprobs=True, top_logprobs=1)
    without = [one["index"] for one in told.choices if not (one.get("logprobs") or {}).get("content")]
    assert not without, f"the choices {without} have none"


@case("F1", needs=("chat.logprobs", "chat.stream"))
async def logprobs_in_streams(deployed: Deployment) -> None:
    """Every choice of a stream has its own log probabilities."""
    if not await _streams_logprobs(deployed):
        raise NotApplicable("the server's own streams have none")
    told = await deployed.stream(N, logprobs=True, top_logprobs=1)
    counts = [
        sum(len((one.get("logprobs") or {}).get("content") or ()) for one in voice.choices) for voice in told.voices
    ]
    assert all(counts), f"so many came for each choice: {counts}"


@case("J1", needs=("completions.available",))
async def completions(deployed: Deployment) -> None:
    """One prompt returns n choices, whole and streamed."""
    await deployed.whole(N, prompt=COUNTING[0])
    if deployed.finding("completions.stream").verdict != "no":
        await deployed.stream(N, prompt=COUNTING[0])


@case("J2", "J4", "E11", needs=("completions.available",))
async def prompts(deployed: Deployment) -> None:
    """Two prompts return 2n choices in prompt order, even from a server that takes one; each prompt counts once."""
    told = await deployed.whole(2, prompt=list(COUNTING), temperature=0.01)
    answers = [await deployed.alone(prompt=prompt, temperature=0.01) for prompt in COUNTING]
    alone = [one for one in answers if one is not None]
    assert len(alone) == len(COUNTING), "the server does not answer the prompts one by one"
    for index, text in told.texts.items():
        likeness = [_alike(text, one.texts[0]) for one in alone]
        assert likeness[index // 2] == max(likeness) > min(likeness), (
            f"choice {index} is of the other prompt: {told.texts}"
        )
    if told.usage is not None:
        own = sum(one.usage["prompt_tokens"] for one in alone if one.usage is not None)
        counted = told.usage["prompt_tokens"]
        assert counted == own, f"{counted} prompt tokens, where the server counts {own} for one choice of each prompt"


def _alike(text: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginnings."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))


@case("J3", needs=("completions.token_prompts",))
async def token_ids(deployed: Deployment) -> None:
    """A list of token ids is one prompt, and a list of such lists is several prompts."""
    ids = [100, 200, 300]
    await deployed.whole(2, prompt=ids)
    await deployed.whole(2, prompt=[ids, ids[::-1]])


@case("J6", needs=("completions.echo",))
async def echo(deployed: Deployment) -> None:
    """Every choice begins with its own prompt."""
    told = await deployed.whole(2, prompt=list(COUNTING), echo=True)
    expected = [prompt for prompt in COUNTING for _ in range(2)]
    wrong = [index for index, text in told.texts.items() if not text.lstrip().startswith(expected[index])]
    assert not wrong, f"the choices {wrong} begin otherwise: {told.texts}"


@case("J9", needs=("completions.logprobs",))
async def best_of(deployed: Deployment) -> None:
    """best_of = 3 returns one choice, the most likely, without log probabilities if none were requested."""
    told = await deployed.whole(1, prompt=COUNTING[0], best_of=3)
    assert told.choices[0].get("logprobs") is None, "log probabilities came"


@case("G1", needs=("chat.tools",))
async def tools(deployed: Deployment) -> None:
    """Every choice calls the required tool, once or more, and each call has its own id."""
    demanded = CHOICES[str(deployed.finding("chat.tools").value)]
    question = [{"role": "user", "content": QUESTION}]
    asked = {"tools": [TOOL], "tool_choice": demanded, "max_tokens": TOOL_TOKENS, "temperature": 0.01}
    told = await deployed.whole(2, messages=question, **asked)
    by_choice = [one["message"].get("tool_calls") or [] for one in told.choices]
    assert all({call["function"]["name"] for call in calls} == {NAME} for calls in by_choice), f"they are {by_choice}"
    ids = [call["id"] for calls in by_choice for call in calls]
    assert len(set(ids)) == len(ids), f"the ids are {ids}"


@case("K1", "K9")
async def refusals(deployed: Deployment) -> None:
    """A refusal by the server is returned once, with its status, in OpenAI's error envelope."""
    wrong = {"top_p": "warm"}
    path, body = deployed.request(wrong)
    control = await deployed.http.post(f"{deployed.server}{path}", json={"model": deployed.model, **body})
    if control.status_code == 200:
        raise NotApplicable('the server takes "warm" for top_p')
    answer = await deployed.ask(n=N, **wrong)
    assert answer.status_code in _told_as(control.status_code), f"{control.status_code} became {answer.status_code}"
    error = answer.json().get("error")
    assert isinstance(error, dict), f"no error in the envelope: {answer.text[:200]}"
    assert error.keys() >= {"message", "type", "param", "code"}, f"the error is {error}"


@case("L1", needs=("chat.stream",))
async def leaving(deployed: Deployment) -> None:
    """When the client disconnects, all calls to the server are closed within a second."""
    path, body = deployed.request({"n": N, "stream": True, "max_tokens": LONG_TOKENS})
    async with deployed.http.stream(
        "POST", f"{deployed.gateway}{path}", json={"model": deployed.alias, **body}
    ) as answer:
        await _first_text(answer)
        assert deployed.counts.inflight > 0, "no call was under way"
    deadline = time.monotonic() + GONE_SECONDS
    while deployed.counts.inflight and time.monotonic() < deadline:
        await asyncio.sleep(LOOK_SECONDS)
    assert deployed.counts.inflight == 0, f"{deployed.counts.inflight} calls are still open after {GONE_SECONDS:g} s"


@case("R7", "N7")
async def wide(deployed: Deployment) -> None:
    """n = 20 returns twenty choices, even from a server that takes fewer at once."""
    await deployed.whole(20, max_tokens=2)


@case("B1", "D16", settings=("auto", "native"))
async def as_if_fanned_out(deployed: Deployment) -> None:
    """With n = 4 and a seed, answer and stream have the same keys, types and texts as with fan-out."""
    other = deployed.at("fanout")
    one_way, other_way = await deployed.whole(N, seed=SEED), await other.whole(N, seed=SEED)
    _equal("answers", shape(one_way.answer), shape(other_way.answer))
    if deployed.finding("chat.stream").verdict != "no":
        streams = [await at.stream(N, seed=SEED) for at in (deployed, other)]
        _equal("streams", *({shape(chunk) for chunk in one.chunks} for one in streams))
    if deployed.finding("chat.seed").verdict == "yes" and await deployed.steady(SEED, N):
        texts = [sorted(told.texts.values()) for told in (one_way, other_way)]
        assert texts[0] == texts[1], f"{texts[0]}, fanned out {texts[1]}"


def shape(value: Any) -> object:
    """Return the keys and types of a JSON value; equal for two answers that differ only in their content.

    The items of a list count once for each shape that occurs.
    """
    if isinstance(value, dict):
        return frozenset((key, shape(one)) for key, one in value.items())
    if isinstance(value, list):
        return frozenset(shape(one) for one in value)
    return type(value).__name__


def _equal(what: str, one: Any, other: Any) -> None:
    assert one == other, f"the {what} differ in {_told(one ^ other)}"


def _told(shapes: frozenset[Any]) -> str:
    return json.dumps(sorted(map(str, shapes)))[:300]


def _check_usage(told: Usage | None, finishes: Mapping[int, str], control: Usage | None) -> None:
    assert told is not None, "no usage came"
    full = sum(reason == "length" for reason in finishes.values())
    least, most = full * TOKENS, len(finishes) * TOKENS
    counted = told["completion_tokens"]
    assert least <= counted <= most, f"{counted} completion tokens for {len(finishes)} choices, {full} of them full"
    if control is not None:
        prompt, own = told["prompt_tokens"], control["prompt_tokens"]
        assert prompt == own, f"{prompt} prompt tokens, where the server counts {own} for one choice"


def _told_as(status: int) -> tuple[int, ...]:
    """Return the statuses with which a refusal may reach the client; a server error may be retried, then give 502."""
    return (status,) if status < 500 else (status, 502)


def _goes_on(text: str, stop: str) -> bool:
    """Whether a text continues after a stop string. transformers serve includes the string, others end before it."""
    return stop in text.rstrip().removesuffix(stop)


async def _steady(deployed: Deployment) -> None:
    if not await deployed.steady(SEED, N):
        raise NotApplicable("the server's answers to a seed depend on what else it computes")


async def _streams_logprobs(deployed: Deployment) -> bool:
    """Whether the server's own streams have log probabilities, asked for one choice."""
    path, body = deployed.request({"stream": True, "logprobs": True, "top_logprobs": 1})
    answer = await deployed.http.post(f"{deployed.server}{path}", json={"model": deployed.model, **body})
    return '"logprobs":{' in answer.text.replace(" ", "").replace("\n", "")


async def _first_text(answer: httpx.Response) -> None:
    async for line in lines_of(answer):
        if line.startswith("data: {"):
            delta = json.loads(line.removeprefix("data: "))["choices"]
            if delta and delta[0]["delta"].get("content"):
                return
    raise AssertionError("the stream had no text")

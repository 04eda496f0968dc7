"""The facts that the probe looks for, and the report that holds them. Each fact is worded so that yes is good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["yes", "no", "unknown"]
Value = int | str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict and its evidence. value: a number or word that goes with it, None if there is none."""

    verdict: Verdict
    how: str
    value: Value = None


def yes(how: str, value: Value = None) -> Finding:
    """The server can, or does."""
    return Finding("yes", how, value)


def no(how: str, value: Value = None) -> Finding:
    """The server cannot, or does not."""
    return Finding("no", how, value)


def unknown(how: str, value: Value = None) -> Finding:
    """The answers do not tell."""
    return Finding("unknown", how, value)


Findings = Mapping[str, Finding]

SERVER_FACTS: Mapping[str, str] = {
    "model_list": "lists its models",
    "slots": "reports its parallel slots",
    "prefix_cache": "caches prefixes",
    "beside": "keeps streaming during other requests",
    "seeds_at_once": "keeps concurrent seeds apart",
    "at_once": "accepts many concurrent calls",
    "cancel": "stops when the client disconnects",
}
ENDPOINT_FACTS: Mapping[str, str] = {
    "available": "answers",
    "sampling": "samples at temperature 1",
    "n": "native n",
    "n_stream": "native n in streams",
    "n_greedy": "n at temperature 0",
    "seed_accepted": "accepts seed",
    "seed": "honours seed",
    "seed_per_choice": "own seed for each choice",
    "fresh_seed": "random without a seed",
    "logprobs": "logprobs",
    "usage": "usage in JSON",
    "usage_all_choices": "usage in JSON counts all choices",
    "stream": "streams",
    "stream_options": "accepts stream_options",
    "stream_usage": "usage in streams",
    "stream_usage_once": "usage in streams comes once, last",
    "stream_usage_all_choices": "usage in streams counts all choices",
    "one_id": "one id for all choices",
    "finish": "a finish_reason for each choice",
    "done": "sends [DONE]",
}
CHAT_FACTS: Mapping[str, str] = {
    "role_chunks": "role chunks first, in order",
    "tools": "calls a required tool",
}
LEGACY_FACTS: Mapping[str, str] = {
    "prompt_lists": "lists of prompts",
    "token_prompts": "token ids as prompt",
    "echo": "echo",
}
FACTS: Mapping[str, Mapping[str, str]] = {
    "server": SERVER_FACTS,
    "chat": {**ENDPOINT_FACTS, **CHAT_FACTS},
    "completions": {**ENDPOINT_FACTS, **LEGACY_FACTS},
}
"""Every fact of every section, in the order of the table, with its wording there."""

NOT_ASKED = "not asked"
NO_ENDPOINT = "the endpoint does not answer"
UNASKED = (NOT_ASKED, NO_ENDPOINT)
"""The `how` of facts about which nothing is known."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found."""

    url: str
    """The base URL."""
    model: str
    """The model that was asked."""
    models: tuple[str, ...]
    """The server's list of models; empty if there is none."""
    server: str
    """What the server calls itself; "" if it does not say."""
    own_engine: bool
    """Whether it is nproxy's engine, asked directly."""
    sections: Mapping[str, Findings]
    """All facts of each section of FACTS."""
    questions: int
    """How many requests were made."""

    def __getitem__(self, key: tuple[str, str]) -> Finding:
        section, fact = key
        return self.sections[section][fact]


def completed(section: str, found: Findings) -> Findings:
    """Return all facts of a section in their order; those that were not asked are unknown."""
    available = found.get("available")
    missing = NOT_ASKED if available is None or available.verdict == "yes" else NO_ENDPOINT
    return {name: found.get(name, unknown(missing)) for name in FACTS[section]}

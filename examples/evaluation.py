"""A small evaluation with the two methods of evaluation harnesses: python examples/evaluation.py

By likelihood, as ARC and HellaSwag are scored: which of the given answers is the most likely continuation of the
question? One request with `echo`, `logprobs` and `max_tokens: 0` scores all answers to a question. By generation: the
model continues the question n times, and the score is the share of continuations that contain the right answer.

OPENAI_BASE_URL: where nproxy listens (default http://127.0.0.1:8000/v1). MODEL: the model's id there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from statistics import fmean

from openai import OpenAI


@dataclass(frozen=True)
class Question:
    """A question. answers: the first one is right."""

    text: str
    answers: tuple[str, ...]


QUESTIONS = (
    Question("The capital of France is", ("Paris", "Berlin", "Madrid")),
    Question("Fish live in", ("water", "trees", "clouds")),
    Question("The opposite of hot is", ("cold", "blue", "fast")),
)
N = 4

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)
model = os.environ.get("MODEL", "smollm2-135m-instruct")


def likeliest(question: Question) -> str:
    """Return the answer whose tokens, given the question, have the highest mean log probability."""
    prompts = [f"{question.text} {answer}" for answer in question.answers]
    scored = client.completions.create(model=model, prompt=prompts, echo=True, logprobs=0, max_tokens=0)
    means = []
    for choice in scored.choices:
        if choice.logprobs is None or choice.logprobs.token_logprobs is None or choice.logprobs.text_offset is None:
            raise SystemExit("the server tells no log probabilities")
        pairs = zip(choice.logprobs.text_offset, choice.logprobs.token_logprobs, strict=True)
        means.append(fmean(logprob for offset, logprob in pairs if offset >= len(question.text)))
    return max(zip(means, question.answers, strict=True))[1]


def said(question: Question) -> float:
    """Return the share of n continuations that contain the right answer."""
    drawn = client.completions.create(model=model, prompt=question.text, n=N, temperature=0.7, max_tokens=6)
    return fmean(question.answers[0].lower() in choice.text.lower() for choice in drawn.choices)


def main() -> None:
    chosen = {question: likeliest(question) for question in QUESTIONS}
    spoken = {question: said(question) for question in QUESTIONS}
    for question in QUESTIONS:
        print(f"{question.text} ... likeliest: {chosen[question]}; said: {spoken[question]:.0%}")
    print(f"by likelihood: {fmean(chosen[question] == question.answers[0] for question in QUESTIONS):.2f}")
    print(f"by generation: {fmean(spoken.values()):.2f}")


if __name__ == "__main__":
    main()

"""Rollouts for reinforcement learning, with group advantages as in GRPO: python examples/rl_rollouts.py

For each prompt, a group of n answers is drawn and rewarded. An answer's advantage compares its reward with the rewards
of its own group: (r - mean) / std (Shao et al., 2024, arXiv:2402.03300). A trainer needs exactly the tokens that were
drawn, and their log probabilities. `return_token_ids` and `logprobs` return both, so that no text has to be tokenized
again, which may give other tokens. vLLM has both fields as well.

OPENAI_BASE_URL: where nproxy listens (default http://127.0.0.1:8000/v1). MODEL: the model's id there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from openai import OpenAI

PROMPTS = ("Write a sentence about the sea.", "Write a sentence about a dog.")
GROUP = 4
WORDS = 12
"""The length of a sentence that gets the full reward."""

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)


@dataclass(frozen=True)
class Rollout:
    """What a trainer needs. tokens and logprobs have one entry per position; advantage applies to all of them."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    logprobs: Sequence[float]
    reward: float
    advantage: float


def reward(text: str) -> float:
    """Return the reward, by a rule that a program can check; 1 is the best."""
    return 1 / (1 + abs(len(text.split()) - WORDS))


def group(prompt: str, seed: int) -> list[Rollout]:
    """Draw a group of answers in one request: the prompt is computed once, regardless of the group's size."""
    answer = client.chat.completions.create(
        model=os.environ.get("MODEL", "smollm2-135m-instruct"),
        messages=[{"role": "user", "content": prompt}],
        n=GROUP,
        seed=seed,
        temperature=1.0,
        max_tokens=20,
        logprobs=True,
        extra_body={"return_token_ids": True},
    )
    rewards = [reward(choice.message.content or "") for choice in answer.choices]
    mean, spread = fmean(rewards), pstdev(rewards)
    rollouts = []
    for choice, own in zip(answer.choices, rewards, strict=True):
        scored = choice.logprobs.content if choice.logprobs is not None else None
        rollouts.append(
            Rollout(
                prompt=(answer.model_extra or {})["prompt_token_ids"],
                tokens=(choice.model_extra or {})["token_ids"],
                logprobs=[token.logprob for token in scored or ()],
                reward=own,
                advantage=(own - mean) / (spread + 1e-6),
            )
        )
    return rollouts


def main() -> None:
    for seed, prompt in enumerate(PROMPTS):
        print(prompt)
        for rollout in group(prompt, seed * GROUP):  # choice i is drawn with seed + i: no two choices share a seed
            told = f"reward {rollout.reward:.2f}, advantage {rollout.advantage:+.2f}"
            print(
                f"  {told}, {len(rollout.tokens)} tokens, {sum(rollout.logprobs):.1f} in all: {rollout.tokens[:5]} ..."
            )


if __name__ == "__main__":
    main()

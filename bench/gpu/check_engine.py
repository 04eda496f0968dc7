"""Check the whole engine against transformers' class of the model with the same weights in float32.

The check compares the log probabilities of every token, in prompts and answers: they depend on prefill in chunks,
forks, decoding, rotations and norms. The error that bfloat16 alone causes is measured with transformers' own model in
bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from bench.gpu.random_models import twin
from bench.gpu.run import Run
from bench.gpu.serving import Answers, Model, prompt, request
from bench.gpu.table import Result
from engine.messages import Add

_WORSE = 1.5  # tolerated factor over the error of transformers' bfloat16, which sums in another order


def check(run: Run) -> None:
    """Check the small model, with recorded steps and with launched ones."""
    keys = [_key(recorded) for recorded in (True, False)]
    run.attempt(keys, partial(_check, run))


def _key(recorded: bool) -> str:
    return f"log probabilities of a model, {'recorded' if recorded else 'launched'} steps"


def _requests(run: Run) -> list[Add]:
    """Return several concurrent requests: prompts of one chunk and of several, and forks of several widths."""
    shape = run.plan.small
    if run.clock.dry:
        return [replace(request(prompt(shape, 9, 1), 2, 2, logprobs=0), prompt_logprobs=0)]
    sizes = ((131, 4), (1021, 7), (17, 1), (509, 33))
    made = [
        request(prompt(shape, length, i), n, 24, group=i, seed=i, logprobs=0) for i, (length, n) in enumerate(sizes)
    ]
    return [replace(add, prompt_logprobs=0) for add in made]


def _check(run: Run) -> Iterator[Result]:
    shape, adds = run.plan.small, _requests(run)
    model = Model.of(run, shape)
    tokens = sum([len(add.prompt) + len(add.choices) * 64 for add in adds])
    found: dict[bool, Answers] = {}
    for recorded in (True, False):
        served = model.runner(run, tokens, cuda_graphs=recorded, max_batch_tokens=512)
        found[recorded] = served.answer(adds)
    exact, rounded = _Scorer(run, torch.float32), _Scorer(run, run.clock.dtype)
    for recorded, answers in found.items():
        ours: list[torch.Tensor] = []
        theirs: list[torch.Tensor] = []
        for add in adds:
            for choice in range(len(add.choices)):
                key = add.group, choice
                reference = exact.score([*add.prompt, *answers.tokens[key]])
                told = [*(answers.prompt[add.group] or ())[1:], *answers.logprobs[key]]
                own = torch.tensor([torch.nan if one is None else one.own for one in told], dtype=torch.float64)
                ours.append((own - reference).abs())
                theirs.append((rounded.score([*add.prompt, *answers.tokens[key]]) - reference).abs())
        mine, peer = torch.cat(ours), torch.cat(theirs)
        yield Result(
            _key(recorded),
            float(mine.mean()),
            f"mean of {len(mine)}; transformers {float(peer.mean()):.3g}, the largest {float(mine.max()):.3g}",
            goal=_WORSE * float(peer.mean()) + 1e-5,
        )


class _Scorer:
    """transformers' model in a given number type."""

    def __init__(self, run: Run, dtype: torch.dtype) -> None:
        self._model = twin(run.plan.small, dtype, run.clock.device)

    def score(self, tokens: Sequence[int]) -> torch.Tensor:
        """Return the log probability of each token from the second on, given those before it; float64."""
        ids = torch.tensor([list(tokens)], device=self._model.device)
        with torch.inference_mode():
            logs: torch.Tensor = self._model(ids).logits[0, :-1].double().log_softmax(-1)
        return logs.gather(1, ids[0, 1:].unsqueeze(1)).squeeze(1).cpu()

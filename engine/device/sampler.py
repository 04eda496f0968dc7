"""A step's draws on a device: the same results as engine.sampling's Sampler, but the tokens stay there for the next
step.

Only `Drawn.collect` waits for the device. A step without edits and cuts is two launches, whose grids depend only on the
number of draws and the vocabulary. On an H200 at V = 151,936 in bfloat16 these take 3 + 6 us for one draw, 8 + 7 for
32 and 24 + 7 for 128 (the logits are read once). On paper, top-k and top-p add 30 to 60 us if any draw of the step has
them, edits add the copy of their rows, log probabilities 20 us.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.batch import STUCK, Draw, Past, StepOutput
from engine.device.draws import Array, DrawPlan, Packer
from engine.device.frame import Frame
from engine.device.transfer import Fetched, pinned
from engine.kernels.draw_table import BLOCK
from engine.kernels.logits_edit import logits_edit
from engine.kernels.logprob_rank import logprob_rank
from engine.kernels.sample_row import block_sums, sample_row
from engine.kernels.topk_topp import topk_topp
from engine.messages import Logprobs, Sampling
from engine.sampling.highest import highest

# Steps that together launch every kernel in each of its forms: with and without edited rows, masks and cuts.
_EVERY_LAUNCH: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 2, "top_p": 0.5},
    {"allowed_tokens": (0, 1)},
    {"top_p": 0.5, "logit_bias": ((0, 1.0),), "bad_words": ((1,),), "frequency_penalty": 0.5},
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A step's draws, perhaps still being computed.

    tokens int64 [M], in the order of the draws, on the device: 0 for a sequence that could not draw, so that the next
    step can begin from them before the host has looked at them.
    """

    tokens: torch.Tensor
    _plan: DrawPlan
    _packed: Fetched  # int32: drawn [M], own [A], rank [A], likeliest [U, K], theirs [U, K]

    def collect(self) -> StepOutput:
        """Wait for the draws; return the output like Sampler.sample."""
        plan = self._plan
        if not plan.asked:
            return _output(plan, self._packed.tensor().tolist(), {})
        parts = np.split(self._packed.tensor().numpy(), np.cumsum(_sizes(plan))[:-1])
        drawn, own, ranks = parts[0].tolist(), parts[1].view(np.float32).tolist(), parts[2].tolist()
        shape = len(plan.likeliest), plan.most
        ids, logs = parts[3].reshape(shape).tolist(), parts[4].view(np.float32).reshape(shape).tolist()
        logprobs: dict[int, Logprobs] = {}
        for place, i in enumerate(plan.asked):
            top: tuple[tuple[int, float], ...] = ()
            if asked := plan.draws[i].logprobs:
                line = plan.likeliest[plan.rows[i]]
                top = tuple(zip(ids[line][:asked], logs[line][:asked], strict=True))
            if drawn[i] >= 0:
                logprobs[plan.draws[i].sequence] = Logprobs(own[place], ranks[place], top)
        return _output(plan, drawn, logprobs)


def _output(plan: DrawPlan, drawn: Sequence[int], logprobs: Mapping[int, Logprobs]) -> StepOutput:
    pairs = [(draw.sequence, token) for draw, token in zip(plan.draws, drawn, strict=True)]
    return StepOutput(
        tuple([pair for pair in pairs if pair[1] >= 0]),
        logprobs,
        stuck={sequence: STUCK[token] for sequence, token in pairs if token < 0},
    )


class DeviceSampler:
    """Draws on a device, one step at a time; "cpu" works too, under Triton's interpreter."""

    def __init__(self, device: torch.device, vocabulary: int) -> None:
        self._device = device
        self._vocabulary = vocabulary
        self._packer = Packer(vocabulary)

    def sample(
        self, logits: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw], masks: Mapping[int, bytes]
    ) -> Drawn:
        """Draw one token for each of `draws`, the i-th from logits[rows[i]], in that order; masks as in Batch.

        logits [N, V] on the device, any float dtype, are not changed.
        """
        plan = self.plan(rows, draws, masks)
        tokens = torch.empty(len(draws), dtype=torch.int64, device=self._device)
        return self.launch(logits, plan, _upload(plan.arrays, self._device), tokens)

    def warm_up(self, dtype: torch.dtype) -> None:
        """Compile everything that steps can need for logits of `dtype`, so that no step has to wait for it."""
        logits = torch.zeros(1, self._vocabulary, dtype=dtype, device=self._device)
        for settings in _EVERY_LAUNCH:
            draw = Draw(0, 0, 0, Sampling(**settings), Past((0,), [0]), logprobs=1)
            self.sample(logits, [0], [draw], {}).collect()

    def plan(self, rows: Sequence[int], draws: Sequence[Draw], masks: Mapping[int, bytes]) -> DrawPlan:
        """Do the host's part, which needs no logits; like Packer.plan. Call it once for each step, in their order."""
        return self._packer.plan(rows, draws, masks)

    def draw(self, logits: torch.Tensor, lines: torch.Tensor, drawn: torch.Tensor, tokens: torch.Tensor) -> None:
        """Draw by the scores alone, a token for each of lines [M, 8] (DrawPlan.lines), into drawn int32 [M] and tokens
        int64 [M] (sample_row).
        """
        best, sums = _sums(logits, len(lines))
        block_sums(logits, None, lines, best, sums)
        sample_row(logits, None, lines, best, sums, drawn, tokens)

    def launch(
        self, logits: torch.Tensor, plan: DrawPlan, arrays: Mapping[str, torch.Tensor], tokens: torch.Tensor
    ) -> Drawn:
        """Do the device's part.

        arrays: plan.arrays on the device, under their names. logits: those that the plan is for. tokens int64 [>= M]:
        the beginning is written, and is Drawn.tokens.
        """
        arrays = {name: arrays[name][: len(array)] for name, array in plan.arrays.items()}
        draws = arrays["draws"]
        edited = logits_edit(logits, arrays) if "changes" in arrays else None
        best, sums = _sums(logits, len(draws))
        block_sums(logits, edited, draws, best, sums)
        lowest = None
        if plan.cuts:
            lowest = topk_topp(logits, edited, draws, best)
            block_sums(logits, edited, draws, best, sums, lowest)
        packed = logits.new_empty(sum(_sizes(plan)), dtype=torch.int32)
        drawn, own, rank, ids, logs = torch.split(packed, _sizes(plan))
        tokens = tokens[: len(draws)]
        sample_row(logits, edited, draws, best, sums, drawn, tokens, lowest)
        if plan.asked:
            top, log = logprob_rank(logits, arrays["asked"], drawn, own.view(torch.float32), rank)
            if plan.likeliest:
                row, first = arrays["likeliest"].unbind(1)
                theirs = logits.index_select(0, row).float()  # [U, V]
                likeliest = highest(theirs, plan.most)
                ids.view(likeliest.shape).copy_(likeliest)
                values = theirs.gather(1, likeliest) - top.index_select(0, first).unsqueeze(1)
                logs.view(torch.float32).view(values.shape).copy_(values - log.index_select(0, first).unsqueeze(1))
        return Drawn(tokens, plan, Fetched(packed))


def _sums(logits: torch.Tensor, draws: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two tensors that block_sums writes for so many draws."""
    best = logits.new_empty((draws, -(-logits.shape[1] // BLOCK)), dtype=torch.float32)
    return best, torch.empty_like(best)


def _upload(arrays: Mapping[str, Array], device: torch.device) -> Mapping[str, torch.Tensor]:
    """Copy arrays to the device in a copy of their own; return them under their names."""
    frame = Frame.of(arrays)
    memory = pinned((frame.size,), torch.uint8, device)
    frame.write(arrays, memory.numpy())
    return frame.views(memory.to(device, non_blocking=True))


def _sizes(plan: DrawPlan) -> list[int]:
    """Return how many entries of `Drawn._packed` are of each kind."""
    asked, likeliest = len(plan.asked), len(plan.likeliest) * plan.most
    return [len(plan.draws), asked, asked, likeliest, likeliest]

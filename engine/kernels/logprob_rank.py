"""Log probabilities of drawn tokens under the raw logits, and their ranks: one program each, two passes
over its row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels import launch
from engine.kernels.draw_table import base, scores


@triton.jit(do_not_specialize_on_alignment=["drawn", "own", "rank"])  # parts of larger tensors
def _logprob_rank(
    logits, asked, drawn, own, rank, tops, logs, stride, vocabulary, WIDTH: tl.constexpr, STAGES: tl.constexpr
):
    one = tl.program_id(0).to(tl.int64)
    token = tl.maximum(tl.load(drawn + tl.load(asked + 2 * one)), 0)
    row = tl.load(asked + 2 * one + 1)
    mine = tl.load(logits + row * stride + token).to(tl.float32)
    highest = tl.full([WIDTH], float("-inf"), tl.float32)
    for start in tl.range(0, vocabulary, WIDTH, num_stages=STAGES):
        place = start + tl.arange(0, WIDTH)
        highest = tl.maximum(highest, scores(logits, None, row, stride, vocabulary, place, place < vocabulary))
    top = base(tl.max(highest, 0))
    total = tl.zeros([WIDTH], tl.float32)
    above = tl.zeros([WIDTH], tl.int32)
    for start in tl.range(0, vocabulary, WIDTH, num_stages=STAGES):
        place = start + tl.arange(0, WIDTH)
        score = scores(logits, None, row, stride, vocabulary, place, place < vocabulary)
        total += tl.exp(tl.minimum(score - top, 0.0))
        above += (score > mine).to(tl.int32)
    log = tl.log(tl.sum(total, 0))
    tl.store(own + one, (mine - top) - log)
    tl.store(rank + one, 1 + tl.sum(above, 0))
    tl.store(tops + one, top)
    tl.store(logs + one, log)


def logprob_rank(
    logits: torch.Tensor,
    asked: torch.Tensor,
    drawn: torch.Tensor,
    own: torch.Tensor,
    rank: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute, for each of asked [A, 2], (draw, row of logits [N, V]), the drawn token's log probability and rank.

    logits of any float dtype; drawn int32 [M] as written by sample_row. own float32 [A] and rank int32 [A], which is 1
    + the number of tokens that score higher, are written (reference.token_logprob). Returns what turns scores of these
    rows into log probabilities, (score - highest) - log: two tensors float32 [A].
    """
    highest = torch.empty(len(asked), dtype=torch.float32, device=logits.device)
    log = torch.empty_like(highest)
    _logprob_rank[(len(asked),)](
        logits,
        asked,
        drawn,
        own,
        rank,
        highest,
        log,
        logits.stride(0),
        logits.shape[1],
        WIDTH=min(triton.next_power_of_2(logits.shape[1]), launch.RANK_TOKENS),
        STAGES=launch.ROW_STAGES,
        num_warps=launch.RANK_WARPS,
    )
    return highest, log

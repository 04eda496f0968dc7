"""The definition of every kernel in plain torch: slow, without a plan, with one loop per dimension.

The faster backends (engine/attention/ on a CPU, Triton on a GPU) are tested against these. They compute in the dtype of
their arguments; tests give them float64.

Shapes: R rows, Q query heads, K key heads, D head_dim, S slots of the KV cache (blocks x block size); query head h
reads key head h // (Q / K).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from engine.kv_spans import Item


def span_slots(blocks: Sequence[int], lo: int, hi: int, block_size: int) -> torch.Tensor:
    """Return the cache slots of key positions lo .. hi - 1, where `blocks` begin at position lo; int64 [hi - lo]."""
    return torch.tensor([blocks[i // block_size] * block_size + i % block_size for i in range(hi - lo)])


def attn_items(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    items: Sequence[Item],
    block_size: int,
    scale: float,
    *,
    positions: Sequence[int] = (),
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute partial attention of each item's rows over the item's span.

    q [R, Q, D]; keys, values [K, S, D]. window: a row at a position sees that many keys, its own included; positions
    [R] are needed then. softcap as in prefill_attn. Returns partial results [slots, Q, D], each normalized over what
    its row sees of the span, and the log-sum-exp of the scores [slots, Q]; zeros and -inf if a row sees nothing of it.
    """
    slots = max((item.slot + len(item.rows) for item in items), default=0)
    partial = q.new_zeros(slots, *q.shape[1:])
    lse = q.new_full((slots, q.shape[1]), -torch.inf)
    group = q.shape[1] // keys.shape[0]
    for item in items:
        where = span_slots(item.blocks, item.lo, item.hi, block_size)
        for offset, row in enumerate(item.rows):
            seen = where if window is None else where[max(positions[row] - window + 1 - item.lo, 0) :]
            for head in range(q.shape[1]) if len(seen) else ():
                scores = capped((keys[head // group, seen] @ q[row, head]) * scale, softcap)  # [seen]
                lse[item.slot + offset, head] = scores.logsumexp(0)
                partial[item.slot + offset, head] = scores.softmax(0) @ values[head // group, seen]
    return partial, lse


def capped(scores: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """Return scores s as softcap * tanh(s / softcap), or unchanged if there is no softcap."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def merge_parts(
    partial: torch.Tensor, lse: torch.Tensor, items: Sequence[Item], rows: int, *, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute attention of whole rows from their partial results, in the order of `lo`; return [rows, Q, D].

    sinks as in prefill_attn.
    """
    out = partial.new_zeros(rows, *partial.shape[1:])
    for row in range(rows):
        mine = [
            item.slot + item.rows.index(row) for item in sorted(items, key=lambda item: item.lo) if row in item.rows
        ]
        scores = lse[mine] if sinks is None else torch.cat((lse[mine], sinks[None].to(lse.dtype)))
        weights = scores.softmax(0)[: len(mine)]  # [parts, Q]
        for part, weight in zip(mine, weights, strict=True):
            out[row] += weight.unsqueeze(-1) * partial[part]
    return out


def prefill_attn(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    start: int,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute causal attention of a chunk at positions start .. start + T - 1; slots [start + T] of all its positions.

    q [T, Q, D]; keys, values [K, S, D]; returns [T, Q, D]. window: a query sees that many keys, its own included.
    softcap: scores s become softcap * tanh(s / softcap). sinks [Q]: one more score per head, without a value.
    """
    out = torch.empty_like(q)
    group = q.shape[1] // keys.shape[0]
    for token in range(len(q)):
        end = start + token + 1
        seen = slots[0 if window is None else max(end - window, 0) : end]
        for head in range(q.shape[1]):
            scores = capped((keys[head // group, seen] @ q[token, head]) * scale, softcap)
            if sinks is not None:
                scores = torch.cat((scores, sinks[head : head + 1].to(scores.dtype)))
            out[token, head] = scores.softmax(0)[: len(seen)] @ values[head // group, seen]
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up, where gate is the first half of the last dimension and up the second."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def rope(heads: torch.Tensor, positions: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """Rotate heads [T, heads, D] in the interleaved order by positions [T] times inverse [D / 2]."""
    angles = positions.to(heads.dtype)[:, None, None] * inverse.to(heads.dtype)
    return turn(heads, angles.cos(), angles.sin())


def turn(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads [..., D] in the interleaved order by angles whose cosines and sines are [..., D / 2]."""
    even, odd = heads[..., 0::2], heads[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def qkv_rope_store(
    qkv: torch.Tensor,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    positions: torch.Tensor,
    slots: torch.Tensor,
    kv: torch.Tensor,
    q_out: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Split qkv [T, (Q + 2K) * D] into heads, and norm and rotate queries and keys.

    Queries are written to q_out [T, Q, D], keys and values to slots [T] of kv [2K, S, D]. cos, sin [positions, D / 2]
    as in models.rope.
    """
    queries, keys = q_out.shape[1], kv.shape[0] // 2
    q, k, v = qkv.view(len(qkv), -1, kv.shape[2]).split((queries, keys, keys), dim=1)
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    if cos is not None and sin is not None:
        q, k = (turn(heads, cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)) for heads in (q, k))
    q_out.copy_(q)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            kv[:, slot] = torch.cat((k[token], v[token]))


def copy_blocks(cache: torch.Tensor, pairs: Sequence[tuple[int, int]], block_size: int) -> None:
    """Copy whole blocks (source, target) of all layers and heads; cache [..., S, D]. No target is a source."""
    for source, target in pairs:
        there = cache[..., source * block_size : (source + 1) * block_size, :]
        cache[..., target * block_size : (target + 1) * block_size, :] = there


def let_through(logits: torch.Tensor, mask: bytes) -> torch.Tensor:
    """Return logits [V] under a grammar's mask: token t stays if bit t % 8 of byte t // 8 exists and is set."""
    passes = [t // 8 < len(mask) and bool(mask[t // 8] & 1 << t % 8) for t in range(len(logits))]
    return torch.where(torch.tensor(passes), logits, -torch.inf)


def exclude(logits: torch.Tensor, tokens: Collection[int]) -> torch.Tensor:
    """Return logits [V] without some tokens."""
    return torch.where(torch.tensor([t in tokens for t in range(len(logits))]), -torch.inf, logits)


def bad_ends(past: Sequence[int], words: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens that would now complete one of the words, given all tokens before, prompt and output."""
    return [word[-1] for word in words if list(past[len(past) - len(word) + 1 :]) == list(word[:-1])]


def add_bias(logits: torch.Tensor, bias: Sequence[tuple[int, float]]) -> torch.Tensor:
    """Return logits [V] with the sum of each token's biases added."""
    out = logits.clone()
    for token, value in bias:
        out[token] += value
    return out


def penalize(
    logits: torch.Tensor,
    prompt: Sequence[int],
    output: Sequence[int],
    repetition: float,
    frequency: float,
    presence: float,
) -> torch.Tensor:
    """Return logits [V] after the penalties: CTRL's over prompt and output, then OpenAI's two over the output."""
    out = logits.clone()
    for token in {*prompt, *output}:
        out[token] = out[token] / repetition if out[token] > 0 else out[token] * repetition
        count = list(output).count(token)
        out[token] -= count * frequency + (count > 0) * presence
    return out


def kept_tokens(logits: torch.Tensor, temperature: float, min_p: float, top_k: int, top_p: float) -> torch.Tensor:
    """Return which tokens min-p, top-k and then top-p keep, from one row of logits [V]; bool [V].

    min-p keeps tokens that are at least min_p times as likely as the likeliest, top-k every token that scores at least
    the k-th highest; top-p then keeps the shortest list of the likeliest that holds at least top_p of what is left. All
    tokens equal to the edge are kept.
    """
    weights = torch.softmax(logits.double() / temperature, -1)
    kept = weights >= min_p * weights.max()
    if 0 < top_k < len(logits):
        kept &= logits >= logits.sort(descending=True).values[top_k - 1]
    if top_p < 1:
        left = torch.where(kept, weights, 0.0)
        order = torch.where(kept, logits.double(), -torch.inf).argsort(descending=True, stable=True)
        needed = int((left[order].cumsum(0) / left.sum() < top_p).sum())
        kept &= logits >= logits[order[min(needed, int(kept.sum()) - 1)]]
    return kept


def token_logprob(logits: torch.Tensor, token: int, count: int) -> tuple[float, int, list[int]]:
    """Return a token's log probability and rank under logits [V], and the likeliest `count`, the lowest id
    first if equal.
    """
    logs = logits.double() - logits.double().logsumexp(0)
    likeliest = sorted(range(len(logits)), key=lambda t: (-float(logits[t]), t))[:count]
    return float(logs[token]), 1 + int((logits > logits[token]).sum()), likeliest


def race(weights: torch.Tensor, block: int, among_blocks: torch.Tensor, inside: torch.Tensor) -> int:
    """Return the token of weights [V] that wins: first among blocks of `block` tokens by their sums, then inside that
    block.

    among_blocks [>= V / block] and inside [block]: standard exponential variates.
    """
    runs = [run.double() for run in torch.split(weights, block)]
    quickest = max(range(len(runs)), key=lambda b: float(runs[b].sum() / among_blocks[b]))
    run = runs[quickest]
    return quickest * block + max(range(len(run)), key=lambda i: float(run[i] / inside[i]))

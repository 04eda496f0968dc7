"""Check the kernels that are neither attention nor products, and the sampler, against float64 and the CPU's backend."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from bench.gpu import references
from bench.gpu.run import Run
from bench.gpu.table import Result
from bench.gpu.uniforms import uniforms
from engine.batch import Draw, Past
from engine.device.sampler import DeviceSampler
from engine.kernels.activation import silu_mul
from engine.kernels.add_product import add_product
from engine.kernels.copy_blocks import copy_blocks
from engine.kernels.norms import rms_norm
from engine.kernels.qkv_rope_store import qkv_rope_store, store
from engine.messages import Sampling
from engine.sampling import philox
from engine.sampling.sampler import Sampler

_EPS = 1e-6


def _tolerance(run: Run) -> float:
    """Return the tolerated error.

    One rounding to the device's type, 2^-9 in bfloat16, and one more if x itself is rounded.
    """
    return 1e-5 if run.clock.dtype == torch.float32 else 6e-3


def small(run: Run) -> None:
    """Check norms, activation, rotation and storing, and copies: the kernels limited by memory bandwidth."""
    checks: dict[str, Callable[[Run], Iterator[Result]]] = {
        "rms_norm": _rms_norm,
        "silu_mul": _silu_mul,
        "add_product": _add_product,
        "add_product, bits": _add_product_bits,
        "qkv_rope_store": _qkv_rope_store,
        "store": _store,
        "copy_blocks": _copy_blocks,
    }
    for name, check in checks.items():
        run.attempt([name], partial(check, run))


def _random(run: Run, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=run.clock.dtype, device=run.clock.device)


def _nothing(run: Run, *shape: int) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=run.clock.dtype, device=run.clock.device)


def _rms_norm(run: Run) -> Iterator[Result]:
    tokens, errors = (3 if run.clock.dry else 77), []
    for width in (48,) if run.clock.dry else (896, 1024, 4096):
        x = torch.randn(tokens, width, device=run.clock.device)
        weight = torch.randn(width, device=run.clock.device)
        for added in (None, _random(run, tokens, width)):
            summed = x.double() if added is None else x.double() + added.double()
            mine, out = x.clone(), _nothing(run, tokens, width)
            rms_norm(mine, added, weight, _EPS, out)
            errors.append(references.error(out, references.rms_norm(summed, weight, _EPS)))
            errors.append(references.error(mine, summed))
    yield Result("rms_norm", max(errors), goal=_tolerance(run), detail={"errors": errors})


def _silu_mul(run: Run) -> Iterator[Result]:
    errors = []
    for tokens, width in ((3, 20),) if run.clock.dry else ((1, 3072), (77, 14336), (5, 4864)):
        gate_up, out = _random(run, tokens, 2 * width), _nothing(run, tokens, width)
        silu_mul(gate_up, out)
        gate, up = gate_up.double().chunk(2, -1)
        errors.append(references.error(out, gate * torch.sigmoid(gate) * up))
    yield Result("silu_mul", max(errors), goal=_tolerance(run), detail={"errors": errors})


def _add_product(run: Run) -> Iterator[Result]:
    """Check products of few rows, with sizes that are no multiples of a tile's too."""
    errors: dict[str, float] = {}
    for columns, depth in ((24, 40),) if run.clock.dry else ((1024, 3072), (576, 1536), (4096, 14336), (896, 4864)):
        for rows in (3, 17) if run.clock.dry else (1, 8, 17, 32):
            x, weight = _random(run, rows, depth), _random(run, columns, depth) / depth**0.5
            bias, out = _random(run, columns), torch.randn(rows, columns, device=run.clock.device)
            expected = out.double() + x.double() @ weight.double().T + bias.double()
            add_product(x, weight, bias, out)
            errors[f"{rows} x {columns} x {depth}"] = references.error(out, expected)
    worst = max(errors, key=lambda name: errors[name])
    yield Result("add_product", errors[worst], worst, goal=1e-4, detail=errors)


def _add_product_bits(run: Run) -> Iterator[Result]:
    """Count numbers that depend on the other rows of a tile, or on the run."""
    columns, depth = (16, 32) if run.clock.dry else (1024, 3072)
    different = 0
    for most in (16, 32):
        x, weight = _random(run, most, depth), _random(run, columns, depth) / depth**0.5
        outs = []
        for rows in (most, most, most // 2 + 1):
            out = torch.zeros(rows, columns, device=run.clock.device)
            outs.append(add_product(x[:rows], weight, None, out)[: most // 2 + 1])
        different += sum([int((out != outs[0]).sum()) for out in outs[1:]])
    # The interpreter's own sums may depend on the number of rows.
    yield Result("add_product, bits", 0 if run.clock.dry else different, goal=0)


def _qkv_rope_store(run: Run) -> Iterator[Result]:
    """Check the queries and the whole cache: slots that are not named keep their bits."""
    errors: dict[str, float] = {}
    device, longest = run.clock.device, 50 if run.clock.dry else 5000
    tokens, slots_there = (5, 16) if run.clock.dry else (77, 256)
    for heads, kv_heads, dim in (
        ((4, 2, 16),) if run.clock.dry else ((16, 8, 128), (14, 2, 64), (32, 8, 128), (9, 3, 64))
    ):
        angles = torch.rand(longest, dim // 2, dtype=torch.float64, device=device) * 6.3
        cos, sin = angles.cos().float(), angles.sin().float()
        positions = torch.randint(longest, (tokens,), device=device)
        slots = torch.randperm(slots_there, device=device)[:tokens]
        slots[1] = -1
        for normed in (False, True):
            weights = [torch.randn(dim, device=device) for _ in range(2)] if normed else [None, None]
            qkv = _random(run, tokens, (heads + 2 * kv_heads) * dim)
            kv, q = _random(run, 2 * kv_heads, slots_there, dim), _nothing(run, tokens, heads, dim)
            before = kv.clone()
            by_head = qkv.double().view(tokens, -1, dim)
            queries, keys, values = torch.split(by_head, [heads, kv_heads, kv_heads], 1)
            if weights[0] is not None and weights[1] is not None:
                queries = references.rms_norm(queries, weights[0], _EPS)
                keys = references.rms_norm(keys, weights[1], _EPS)
            queries, keys = (references.turned(x, cos[positions], sin[positions]) for x in (queries, keys))
            there = slots >= 0
            expected = before.double()
            expected[:, slots[there]] = torch.cat((keys, values), 1)[there].transpose(0, 1)
            qkv_rope_store(qkv, cos, sin, positions, slots, kv, q, q_norm=weights[0], k_norm=weights[1], eps=_EPS)
            name = f"{heads}/{kv_heads}/{dim}{' normed' * normed}"
            errors[name] = max(
                references.error(q.flatten(0, 1), queries.flatten(0, 1)),
                references.error(kv.flatten(0, 1), expected.flatten(0, 1)),
            )
            kept = torch.ones(slots_there, dtype=torch.bool, device=device)
            kept[slots[there]] = False
            if not torch.equal(kv[:, kept], before[:, kept]):
                raise RuntimeError(f"{name}: a slot was written that nobody named")
    worst = max(errors, key=lambda name: errors[name])
    yield Result("qkv_rope_store", errors[worst], worst, goal=_tolerance(run), detail=errors)


def _store(run: Run) -> Iterator[Result]:
    device = run.clock.device
    tokens, slots_there, heads, dim = (3, 8, 2, 16) if run.clock.dry else (77, 256, 8, 64)
    new, kv = _random(run, tokens, 2 * heads, dim), _random(run, 2 * heads, slots_there, dim)
    slots = torch.randperm(slots_there, device=device)[:tokens]
    slots[0] = -1
    expected = kv.clone()
    expected[:, slots[1:]] = new[1:].transpose(0, 1)
    store(new, slots, kv)
    yield Result("store", int((kv != expected).sum()), "numbers that differ", goal=0)


def _copy_blocks(run: Run) -> Iterator[Result]:
    size = run.plan.block
    layers, heads, blocks, dim, pairs = (2, 2, 8, 16, 2) if run.clock.dry else (28, 8, 512, 128, 130)
    pool = _random(run, layers, 2 * heads, blocks * size, dim)
    expected = pool.clone()
    chosen = torch.randperm(blocks, device=run.clock.device)[: 2 * pairs].view(pairs, 2)
    by_block = expected.view(layers, 2 * heads, blocks, size, dim)
    by_block[:, :, chosen[:, 1]] = by_block[:, :, chosen[:, 0]]
    copy_blocks(pool, chosen.int(), size)
    yield Result("copy_blocks", int((pool != expected).sum()), "numbers that differ", goal=0)


def sampler(run: Run) -> None:
    """Check the sampler's random numbers, and its tokens against those of the CPU's sampler."""
    run.attempt(["uniforms"], partial(_uniforms, run))
    for vocabulary in (304, 301) if run.clock.dry else (151936, 50257):  # rows aligned for wide loads, and unaligned
        names = [f"{what}, V = {vocabulary}" for what in ("sampled tokens", "log probabilities")]
        run.attempt(names, partial(_sampled, run, names, vocabulary))


def _uniforms(run: Run) -> Iterator[Result]:
    chance = random.Random(3)
    most = 1 << 63
    seeds = torch.tensor([chance.randrange(-most, most) for _ in range(4 if run.clock.dry else 256)])
    positions = torch.tensor([chance.randrange(1 << 20) for _ in seeds])
    differ = 0
    for count, stream in ((16, 0), (8, 1)) if run.clock.dry else ((1024, 0), (256, 1)):
        drawn = uniforms(seeds.to(run.clock.device), positions.to(run.clock.device), count, stream)
        differ += int((drawn.cpu() != philox.uniforms(seeds, positions, count, stream)).sum())
    yield Result("uniforms", differ, "numbers that differ", goal=0)


def _settings(vocabulary: int) -> list[Sampling]:
    """Return each sampling setting alone, and some of them combined."""
    chance = random.Random(5)
    ids = [chance.randrange(vocabulary) for _ in range(8)]
    plain = Sampling()
    return [
        plain,
        Sampling(temperature=0.0),
        Sampling(temperature=0.6),
        Sampling(top_k=40),
        Sampling(top_k=1),
        Sampling(top_p=0.9),
        Sampling(min_p=0.05),
        Sampling(temperature=1.3, top_k=50, top_p=0.95, min_p=0.01),
        replace(plain, logit_bias=tuple((token, 4.0) for token in ids)),
        replace(plain, presence_penalty=0.7, frequency_penalty=0.4),
        replace(plain, repetition_penalty=1.3, top_p=0.8),
        replace(plain, allowed_tokens=tuple(sorted(set(ids)))),
        replace(plain, bad_words=((ids[0],), (ids[1], ids[2]))),
    ]


def _sampled(run: Run, names: Sequence[str], vocabulary: int) -> Iterator[Result]:
    """Check that the tokens are the CPU's and the log probabilities float64's.

    Up to 2% of the tokens may differ: two tokens may be so close in the draw that rounding decides between them.
    """
    settings = _settings(vocabulary) * (1 if run.clock.dry else 4)
    logits = _random(run, len(settings), vocabulary) * 3
    chance = random.Random(9)
    draws, masks = [], {}
    for i, sampling in enumerate(settings):
        past = Past(tuple(chance.choices(range(vocabulary), k=50)), chance.choices(range(vocabulary), k=50))
        seed, position = chance.randrange(1 << 62), chance.randrange(1 << 16)
        asked = (None, 0, 5)[i % 3]
        draws.append(Draw(i, seed, position, sampling, past if sampling.edits else None, logprobs=asked))
        if i % 5 == 0 and sampling.allowed_tokens is None:
            masks[i] = chance.randbytes(-(-vocabulary // 8))
    rows = list(range(len(draws)))
    mine = DeviceSampler(run.clock.device, vocabulary).sample(logits, rows, draws, masks).collect()
    theirs = Sampler().sample(logits.float().cpu(), rows, draws, masks)
    expected = dict(theirs.tokens)
    differ = [sequence for sequence, token in mine.tokens if expected.get(sequence) != token]
    differ += [sequence for sequence in expected if sequence not in dict(mine.tokens)]
    if mine.stuck != theirs.stuck:
        raise RuntimeError(f"stuck are {dict(mine.stuck)}, not {dict(theirs.stuck)}")
    yield Result(
        names[0],
        len(set(differ)) / len(draws),
        f"of {len(draws)}, differ: {[settings[i] for i in differ][:2]}" if differ else "",
        goal=0.02,
    )
    yield Result(names[1], _worst_logprob(logits, mine.logprobs, dict(mine.tokens), draws), goal=1e-4)


def _worst_logprob(logits: torch.Tensor, told: object, tokens: dict[int, int], draws: Sequence[Draw]) -> float:
    """Return the largest difference of a log probability from float64's; infinity if a rank or a list is wrong."""
    assert isinstance(told, dict)
    worst = 0.0
    for draw in draws:
        if draw.logprobs is None:
            continue
        one, row = told[draw.sequence], logits[draw.sequence].double()
        logs = row.log_softmax(-1)
        own = logs[tokens[draw.sequence]]
        if one.rank != int((row > row[tokens[draw.sequence]]).sum()) + 1 or len(one.top) != draw.logprobs:
            return math.inf
        pairs = [(one.own, float(own)), *[(value, float(logs[token])) for token, value in one.top]]
        best = logs.topk(draw.logprobs).values.tolist() if draw.logprobs else []
        pairs += [(value, expected) for (_, value), expected in zip(one.top, best, strict=True)]
        worst = max([worst, *[abs(a - b) for a, b in pairs]])
    return worst

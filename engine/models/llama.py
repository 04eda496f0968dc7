"""One decoder for the Llama family: Llama, SmolLM, SmolLM3, Mistral, Qwen2, Qwen3.

A step's tensors are flat over tokens, whatever sequences these belong to: T tokens run through every product together,
and only attention knows which tokens see each other. Products, keys and values are in the model's dtype; the residual
stream and the norms are in float32.

Shapes: T tokens, H hidden, Q query heads, K key (and value) heads, D head_dim, I intermediate, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.errors import ModelError
from engine.models.linear import Linear
from engine.models.llama_lora import fused_pairs
from engine.models.lora import Pair, TokensOf, add_pair
from engine.models.model import CPU
from engine.models.ops import DecoderOps, Heads
from engine.models.products import TORCH, Products
from engine.models.quantized import Int8Matrix
from engine.models.rope import frequencies, interleave
from engine.models.spec import ModelSpec
from engine.models.stored import StoredMatrix, Weights, ordered, stacked
from engine.models.weights import Checkpoint

Embedding = Callable[[torch.Tensor], torch.Tensor]  # tokens [T] -> [T, H] float32


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights, as products and norms."""

    attention_norm: torch.Tensor  # [H]
    qkv: Linear  # [T, H] -> [T, (Q + 2K) * D]: queries, keys, values
    heads: Heads  # interleaved, like their norms
    output: Linear  # [T, Q * D] -> [T, H]
    mlp_norm: torch.Tensor  # [H]
    gate_up: Linear  # [T, H] -> [T, 2 * I]
    down: Linear  # [T, I] -> [T, H]


class Decoder:
    """A loaded model. It holds weights only, so any number of steps may run through it one after the other."""

    steady = True

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        max_positions: int,
        device: torch.device = CPU,
        *,
        int8: bool = False,
        products: Products = TORCH,
    ) -> None:
        """Read and pack all weights. `max_positions`: the longest sequence that will run, in tokens.

        int8: quantize all products and the embedding. Raises ModelError if a tensor is missing, has another shape, or
        exists but is unknown.
        """
        self.spec = checkpoint.spec
        self.dtype = dtype
        self.vocab, self.eos, self.attention = self.spec.vocab, self.spec.eos, self.spec.attention
        self.context = max_positions
        self._products = products
        reader = _Reader(checkpoint, dtype, device, products, int8=int8)
        spec = self.spec
        has_head = "lm_head.weight" in checkpoint.names
        if not has_head and not spec.tied:
            raise ModelError("the checkpoint has no lm_head.weight, and its config does not tie it to the embedding")
        embedding = reader.matrix("model.embed_tokens", spec.vocab, spec.hidden)  # [V, H]
        # a head beside an embedding that it is said to be tied to is used if it differs, as transformers does
        head_weight = reader.matrix("lm_head", spec.vocab, spec.hidden) if has_head else embedding
        tied = spec.tied and (not has_head or _equal(head_weight, embedding))
        self._embedding, head = reader.embedding(embedding, tied=tied)
        self.layers = [_layer(reader, spec, i) for i in range(spec.layers)]
        self._norm = reader.norm("model.norm.weight", spec.hidden)
        self._head = head or reader.linear(head_weight)
        self.frequencies = frequencies(spec, reader.optional("rope_freqs.weight", spec.head_dim // 2))
        self._adapters: dict[str, list[dict[str, Linear]]] = {}
        reader.refuse_unread()

    def adapt(self, name: str, pairs: Mapping[str, Pair]) -> None:
        """Like Model.adapt; the linear products of the layers can be adapted."""
        fused = fused_pairs(pairs, self.spec)
        self._adapters[name] = [
            {product: self._products.pair(pair) for product, pair in layer.items()} for layer in fused
        ]

    @property
    def products(self) -> Iterator[Linear]:
        """All matrix products of the layers, the head and the adapters."""
        for layer in self.layers:
            yield from (layer.qkv, layer.output, layer.gate_up, layer.down)
        yield self._head
        for layers in self._adapters.values():
            for pairs in layers:
                yield from pairs.values()

    def run(
        self, tokens: torch.Tensor, positions: torch.Tensor, ops: DecoderOps, adapted: Sequence[TokensOf] = ()
    ) -> torch.Tensor:
        """Run tokens [T] through all layers; return the residual stream, [T, H] float32. `ops` knows the positions."""
        eps = self.spec.eps
        x = self._embedding(tokens)  # [T, H]
        if not adapted and ops.layers(x):
            return x
        added: torch.Tensor | None = None  # what the last product adds to x, if it has not
        for index, layer in enumerate(self.layers):
            pairs = [(self._adapters[a.adapter][index], a.tokens) for a in adapted]
            h = ops.norm(x, added, layer.attention_norm, eps)
            h = ops.heads(index, _with(pairs, "qkv", h, layer.qkv(h)), layer.heads)  # [T, Q * D]
            added = _with(pairs, "output", h, layer.output(h)) if pairs else ops.add(x, h, layer.output)
            h = ops.norm(x, added, layer.mlp_norm, eps)
            h = ops.silu_mul(_with(pairs, "gate_up", h, layer.gate_up(h)))  # [T, I]
            added = _with(pairs, "down", h, layer.down(h)) if pairs else ops.add(x, h, layer.down)
        return x if added is None else x.add_(added)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """Return the residual stream after the last norm: x [N, H] of `run` -> [N, H] float32."""
        return TORCH.normed(x, self._norm, self.spec.eps, torch.float32)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits after some tokens: x [N, H] of `run` -> [N, V] in the model's dtype."""
        return self._head(self._products.normed(x, self._norm, self.spec.eps, self.dtype))


def _with(
    added: Sequence[tuple[Mapping[str, Linear], torch.Tensor]], product: str, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """Return y, a layer's product of x, with what adapters add to it for their tokens."""
    for pairs, tokens in added:
        if product in pairs:
            add_pair(y, x, pairs[product], tokens)
    return y


def _layer(reader: _Reader, spec: ModelSpec, number: int) -> Layer:
    at = f"model.layers.{number}."
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    attention, mlp = f"{at}self_attn.", f"{at}mlp."
    normed = spec.qk_norm
    qkv = reader.stack([(f"{attention}{p}_proj", rows) for p, rows in (("q", q), ("k", kv), ("v", kv))], spec.hidden)
    qkv_bias = None
    if spec.qkv_bias:
        qkv_bias = reader.stack_bias([(f"{attention}{p}_proj", rows) for p, rows in (("q", q), ("k", kv), ("v", kv))])
    order = torch.arange(q + 2 * kv)
    order[:q] = interleave(order[:q], spec.heads)
    order[q : q + kv] = interleave(order[q : q + kv], spec.kv_heads)
    gate_up = [(f"{mlp}gate_proj", spec.intermediate), (f"{mlp}up_proj", spec.intermediate)]
    return Layer(
        attention_norm=reader.norm(f"{at}input_layernorm.weight", spec.hidden),
        qkv=reader.linear(ordered(qkv, order), None if qkv_bias is None else qkv_bias[order]),
        heads=Heads(
            spec.attention[number],
            q_norm=interleave(reader.norm(f"{attention}q_norm.weight", spec.head_dim), 1) if normed else None,
            k_norm=interleave(reader.norm(f"{attention}k_norm.weight", spec.head_dim), 1) if normed else None,
            eps=spec.eps,
            rotated=number not in spec.unrotated,
        ),
        output=reader.product(f"{attention}o_proj", spec.hidden, q, bias=spec.output_bias),
        mlp_norm=reader.norm(f"{at}post_attention_layernorm.weight", spec.hidden),
        gate_up=reader.linear(
            reader.stack(gate_up, spec.hidden), reader.stack_bias(gate_up) if spec.mlp_bias else None
        ),
        down=reader.product(f"{mlp}down_proj", spec.hidden, spec.intermediate, bias=spec.mlp_bias),
    )


class _Reader:
    """Reads tensors in the shapes that the decoder wants, and remembers which; exists while a model loads."""

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, products: Products, *, int8: bool
    ) -> None:
        self._checkpoint = checkpoint
        self._products = products
        self._int8 = int8
        self._dtype = dtype
        self._weights = torch.float32 if int8 else dtype  # dtype of matrices, which are rounded once
        self._device = device
        self._read: set[str] = set()

    def into(self, name: str, out: torch.Tensor) -> torch.Tensor:
        self._checkpoint.read(name, out)
        self._read.add(name)
        return out

    def matrix(self, name: str, rows: int, columns: int) -> Weights:
        return self.stack([(name, rows)], columns)

    def demand(self, parts: list[tuple[str, int]], *columns: int) -> None:
        """Refuse tensors of other shapes before memory for them is asked for: it may be more than there is."""
        for name, rows in parts:
            self._checkpoint.demand(name, (rows, *columns))

    def norm(self, name: str, size: int) -> torch.Tensor:
        self.demand([(name, size)])
        return self.into(name, torch.empty(size, dtype=torch.float32, device=self._device))

    def optional(self, name: str, size: int) -> torch.Tensor | None:
        """Read a tensor that is used in computations while loading, wherever the model will run; None if it does not
        exist.
        """
        return self.into(name, torch.empty(size)) if name in self._checkpoint.names else None

    def stack(self, parts: list[tuple[str, int]], columns: int) -> Weights:
        """Return the weights of several products stacked vertically, each given as (name, rows)."""
        if self._products.keep and not self._int8 and (kept := self._stored(parts, columns)) is not None:
            return kept
        self.demand([(f"{name}.weight", rows) for name, rows in parts], columns)
        fused = torch.empty(sum(rows for _, rows in parts), columns, dtype=self._weights, device=self._device)
        for (name, _), part in zip(parts, torch.split(fused, [rows for _, rows in parts]), strict=True):
            self.into(f"{name}.weight", part)
        return fused

    def _stored(self, parts: list[tuple[str, int]], columns: int) -> Weights | None:
        """Return the same as it is stored; None if the parts are not stored alike."""
        whole = stacked([self._checkpoint.stored(f"{name}.weight", (rows, columns)) for name, rows in parts])
        if whole is not None:
            self._read.update(f"{name}.weight" for name, _ in parts)
        return whole

    def stack_bias(self, parts: list[tuple[str, int]]) -> torch.Tensor:
        self.demand([(f"{name}.bias", rows) for name, rows in parts])
        fused = torch.empty(sum(rows for _, rows in parts), dtype=self._dtype, device=self._device)
        for (name, _), part in zip(parts, torch.split(fused, [rows for _, rows in parts]), strict=True):
            self.into(f"{name}.bias", part)
        return fused

    def product(self, name: str, rows: int, columns: int, *, bias: bool) -> Linear:
        return self.linear(self.matrix(name, rows, columns), self.stack_bias([(name, rows)]) if bias else None)

    def linear(self, weight: Weights, bias: torch.Tensor | None = None) -> Linear:
        """Return the product with a matrix that was read; the matrix is consumed."""
        if isinstance(weight, StoredMatrix):
            if (kept := self._products.stored(weight, bias)) is not None:
                return kept
            weight = weight.floats().to(self._dtype)
        if self._int8:
            return self._products.int8(Int8Matrix.of(weight), bias)
        return self._products.linear(weight, bias)

    def embedding(self, weight: Weights, *, tied: bool) -> tuple[Embedding, Linear | None]:
        """Return the embedding that looks up rows of a matrix that was read, and the head that is tied to it; the
        matrix is consumed.
        """
        if isinstance(weight, StoredMatrix):
            return weight.rows, (self.linear(weight) if tied else None)
        if self._int8:
            matrix = Int8Matrix.of(weight)
            return matrix.rows, (self._products.int8(matrix) if tied else None)
        return (lambda tokens: F.embedding(tokens, weight).float()), (self._products.linear(weight) if tied else None)

    def refuse_unread(self) -> None:
        """Refuse a checkpoint with tensors that were not read: such a model is more than what would run."""
        left = {name for name in self._checkpoint.names - self._read if "rotary_emb" not in name}
        if left:
            raise ModelError(f"the checkpoint has {len(left)} tensors that the decoder does not know: {min(left)}")


def _equal(one: Weights, other: Weights) -> bool:
    return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)

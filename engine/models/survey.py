"""Finds out what a transformers model asks of its layers' attention, by running it on two tokens.

Both kinds of functions that transformers accepts are registered here: one for attention, which passes a layer's
queries, keys and values to whatever object the caller gave to the model's forward, and one for masks, which examines
what a mask lets through instead of making it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from engine.errors import ModelError
from engine.models.spec import AttentionSpec

KEYWORD = "engine_pass"  # the keyword that carries the object through the model's forward
SURVEYED, _SERVED = "engine_survey", "engine"  # the attention function's names, with and without masks
_TOLERANCE = 0.05  # of the largest number: far beyond rounding in bfloat16, far below another token's influence
_FAR = (1 << 17) + 3  # a position beyond every known window and chunk
_HARMLESS = {  # these matter only to training, to other kernels, or to what is returned
    *("dropout", "deterministic", "use_cache", "past_key_values", "output_attentions", "output_hidden_states"),
    *("position_ids", "cache_position", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
    *("output_router_logits", "return_dict"),
}


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *args: Any,
    s_aux: torch.Tensor | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention: query [1, Q, T, D], key [1, K, T, D], value [1, K, T, Dv] -> ([1, T, Q, Dv], None)."""
    taken = settings.pop(KEYWORD, None)
    if taken is None:
        raise ModelError(f"{type(module).__name__} does not hand on what the model's forward was given")
    return taken(query, key, value, s_aux, settings | {"attention_mask": attention_mask, "unnamed": args or None}), None


def _mask(*_: Any, mask_function: Any, **__: Any) -> torch.Tensor:
    """Return how many keys a mask lets two queries far from the beginning see, if just those before them: [1, 1, 1, 2].

    Zero if it lets through any other keys.
    """
    queries, keys = torch.tensor([[_FAR], [_FAR + 1]]), torch.arange(_FAR + 3)
    seen = torch.as_tensor(mask_function(torch.tensor(0), torch.tensor(0), queries, keys)).expand(2, _FAR + 3)
    counts = seen.sum(1, keepdim=True)
    window = (keys <= queries) & (keys > queries - counts)
    return torch.where((window == seen).all(1, keepdim=True), counts, 0).view(1, 1, 1, 2)


AttentionInterface.register(SURVEYED, _attention)
AttentionInterface.register(_SERVED, _attention)
AttentionMaskInterface.register(SURVEYED, _mask)


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found: each attention call of a pass, the type that the model's layers return, and their hidden states
    [T, H].
    """

    attention: tuple[AttentionSpec, ...]
    output_type: Any
    hidden: torch.Tensor


def serve_attention(model: PreTrainedModel) -> None:
    """Switch a surveyed model to serving: masks are no longer made."""
    model.set_attn_implementation(_SERVED)


def survey(base: torch.nn.Module, name: str, context: int) -> Survey:
    """Run the layers `base` of the model `name` on two tokens, and again with the second one moved to the front.

    The second token keeps its position, so nothing may change for it. (Run alone, it would be in products of another
    shape, and rounding could route it to other experts.) Nor may anything change if a text's first two tokens get the
    positions 0 and 1 instead of those that the model itself gives them. Raises ModelError for what the engine does not
    support: an attention with more than AttentionSpec describes, a mask that is neither causal nor a sliding window,
    layers that mix tokens outside of attention or count their positions themselves, positions that begin at another
    number.
    """
    position = max(min(context, 9) - 2, 1)
    specs, seen, output = _run(base, name, context, [1, 2], 1, position - 1)
    if not specs:
        raise ModelError(f"the attention of {name} is not behind transformers' attention interface")
    if not _alike(seen, _run(base, name, context, [2, 1], 0, position)[1]):
        raise ModelError(f"{name} lets tokens see each other outside of attention, or counts positions itself")
    first, own = (_run(base, name, context, [1, 2], 1, start)[1] for start in (0, None))
    if not _alike(first, own):
        raise ModelError(f"the positions of {name} do not begin at 0, which is not supported")
    return Survey(tuple(specs), type(output), output.last_hidden_state[0])


def _run(
    base: torch.nn.Module, name: str, context: int, tokens: list[int], place: int, start: int | None
) -> tuple[list[AttentionSpec], list[torch.Tensor], Any]:
    """Run tokens at the positions from `start` on; if it is None, at those that the model itself gives them.

    Returns what the layers ask for, what is seen of the token at `place` (queries, keys and values layer by layer, and
    its last hidden state), and the output.
    """
    recorder = _Recorder(name, context, place)
    positions = None if start is None else torch.tensor([range(start, start + len(tokens))])
    output = base(input_ids=torch.tensor([tokens]), position_ids=positions, use_cache=False, **{KEYWORD: recorder})
    return recorder.specs, [*recorder.seen, output.last_hidden_state[0, place]], output


def _alike(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return all((x - y).abs().max() <= _TOLERANCE * y.abs().max() for x, y in zip(some, others, strict=True))


class _Recorder:
    """Notes what each layer's attention is asked for, and answers with every token's own value.

    seen: queries, keys and values of the token at one place, layer by layer.
    """

    def __init__(self, name: str, context: int, place: int) -> None:
        self.specs: list[AttentionSpec] = []
        self.seen: list[torch.Tensor] = []
        self._name = name
        self._context = context
        self._place = place

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None, settings: dict[str, Any]
    ) -> torch.Tensor:
        heads, kv_heads, width = q.shape[1], k.shape[1], q.shape[3]
        if q.shape[0] != 1 or q.shape[2] != k.shape[2] or v.shape[1:3] != k.shape[1:3] or heads % kv_heads:
            self._refuse(f"queries {tuple(q.shape)}, keys {tuple(k.shape)} and values {tuple(v.shape)}")
        if sinks is not None and sinks.shape != (heads,):
            self._refuse(f"sinks of the shape {tuple(sinks.shape)}")
        scale = settings.pop("scaling", None)
        spec = AttentionSpec(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=max(width, v.shape[3]),
            scale=width**-0.5 if scale is None else float(scale),
            window=self._window(settings.pop("attention_mask"), settings.pop("sliding_window", None)),
            softcap=settings.pop("softcap", None),
        )
        if settings.pop("is_causal", None) is False:
            self._refuse("attention to later tokens")
        for key, value in settings.items():
            if value is not None and key not in _HARMLESS:
                self._refuse(key)
        self.specs.append(spec)
        self.seen += [x[0, :, self._place] for x in (q, k, v)]
        return v.repeat_interleave(heads // kv_heads, 1).transpose(1, 2).contiguous()  # models view it

    def _window(self, mask: torch.Tensor | None, named: int | None) -> int | None:
        """Return the window that `_mask` found; if a layer names one itself, it must be the same."""
        counts = mask.flatten().tolist() if mask is not None and mask.numel() == 2 else [0, 0]
        if counts == [_FAR + 1, _FAR + 2]:
            window = None
        elif counts[0] == counts[1] and counts[0]:
            window = int(counts[0])
        else:
            self._refuse("a mask that is neither causal nor a sliding window")
        if named is not None and window != named and min(named, window or named) < self._context:
            self._refuse(f"a window of {named}, and a mask of {window}")
        return window

    def _refuse(self, what: str) -> NoReturn:
        raise ModelError(
            f"layer {len(self.specs)} of {self._name} asks for {what}, which the engine's attention does not support"
        )

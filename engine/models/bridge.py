"""Runs the decoder-only models that transformers knows, on the engine's cache.

transformers lets a model's attention be any registered function and passes it whatever else the caller gave to the
model's forward. So a step runs as one row of tokens at their own positions: everything but attention works per token
and does not depend on which sequence a token belongs to, and attention is the engine's. No code of a checkpoint is run.

The properties of a layer's attention (heads, scale, window, cap) are not read from the config, where every family
writes them differently: `survey.py` runs the loaded model on two tokens and observes what its layers ask for. A model
that asks for something else is refused there.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config, PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from engine.errors import ModelError
from engine.json_files import read_object
from engine.models.fields import Fields
from engine.models.hf_folder import check_tensors, read_eos
from engine.models.lora import Pair, TokensOf, add_pair
from engine.models.model import CPU, sequence_limit
from engine.models.ops import Attend, AttentionOps
from engine.models.room import demand_room
from engine.models.spec import LONGEST, AttentionSpec
from engine.models.survey import KEYWORD, SURVEYED, serve_attention, survey

_log = logging.getLogger(__name__)
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")  # as the families call their number


class Bridge:
    """A loaded transformers model with the runner's interface (engine.models.model.Model)."""

    frequencies = None
    steady = False  # a transformers class may choose experts, or do other data-dependent work

    def __init__(self, folder: Path, dtype: torch.dtype, max_model_len: int | None, device: torch.device = CPU) -> None:
        """Load the folder's weights into transformers' class for it.

        Raises ModelError, with the reason, for a model that the interface does not support, and for files that are
        damaged or do not match the config; ConfigError if max_model_len exceeds the model's own limit,
        or if the weights cannot be in memory.
        """
        sizes = check_tensors(folder)  # transformers' own messages for a missing or damaged file are long
        demand_room(folder, sizes, dtype.itemsize, keep=False)  # in this memory first, whatever the device
        config = _config(folder)
        text = config.get_text_config()
        self.context = sequence_limit(max_model_len, *_lengths(text))
        eos = read_eos(folder)
        named = getattr(text, "eos_token_id", None) if eos is None else eos
        self.eos = Fields({}, "config.json").ids("eos_token_id", named)
        self._model = _load(folder, config, dtype)
        self._own = f"{_layers_name(self._model)}."
        self._base = self._model.get_submodule(_layers_name(self._model))
        self._adapters: dict[torch.nn.Module, dict[str, Pair]] = {}  # by module and adapter
        self._adapted: Sequence[TokensOf] = ()  # of the step that runs, for the hooks
        self._dtype = dtype
        try:
            with torch.inference_mode():
                seen = survey(self._base, _name(config), self.context)
                self.attention = seen.attention
                self._head = _head_alone(self._model, seen.output_type)
                self.vocab = self.logits(seen.hidden).shape[-1]
        except (ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError) as error:  # its arguments, sizes
            raise ModelError(f"{_name(config)} does not run on tokens and positions: {_first_line(error)}") from error
        serve_attention(self._model)
        self._model.to(device)  # only now, because the survey makes tensors on the CPU
        _own(self._model)
        _log.info("%s runs through transformers' class %s", folder.name, type(self._model).__name__)

    def adapt(self, name: str, pairs: Mapping[str, Pair]) -> None:
        """Like Model.adapt. The layers' linear products can be adapted; experts cannot, because they are one tensor."""
        for module_name, pair in pairs.items():
            module = self._adaptable(module_name, pair)
            if module not in self._adapters:
                self._adapters[module] = {}
                module.register_forward_hook(self._add)
            self._adapters[module][name] = pair

    def _adaptable(self, name: str, pair: Pair) -> torch.nn.Module:
        try:
            module = self._model.get_submodule(name)
        except AttributeError:
            module = None
        if module is None or not isinstance(module, torch.nn.Linear | Conv1D) or not name.startswith(self._own):
            raise ModelError(f"{name} is not among the modules that can be adapted")
        weight = module.weight.T if isinstance(module, torch.nn.Linear) else module.weight  # [in, out]
        if (pair.a.shape[0], pair.b.shape[1]) != weight.shape:
            shape = (pair.a.shape[0], pair.b.shape[1])
            raise ModelError(f"{name} is {tuple(weight.shape)}, the adapter's is {shape}")
        return module

    def _add(self, module: torch.nn.Module, given: tuple[torch.Tensor, ...], y: torch.Tensor) -> None:
        for each in self._adapted:
            if (pair := self._adapters[module].get(each.adapter)) is not None:
                add_pair(y.view(-1, y.shape[-1]), given[0].reshape(-1, given[0].shape[-1]), pair, each.tokens)

    def run(
        self, tokens: torch.Tensor, positions: torch.Tensor, ops: AttentionOps, adapted: Sequence[TokensOf] = ()
    ) -> torch.Tensor:
        """Like Model.run; the result is after the final norm, as in transformers."""
        self._adapted = adapted
        step = _Pass(ops.attend, self.attention, self._dtype)
        output = self._base(
            input_ids=tokens.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False, **{KEYWORD: step}
        )
        x: torch.Tensor = output.last_hidden_state[0]
        return x

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """Like Model.hidden."""
        return x

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Like Model.logits: the head with everything that the model's class does to its scores (scales, caps)."""
        logits: torch.Tensor = self._head(inputs_embeds=x.unsqueeze(0), use_cache=False).logits[0]
        return logits


class _Pass:
    """One step's pass through the model: the layers call it one after the other."""

    def __init__(self, attend: Attend, attention: tuple[AttentionSpec, ...], dtype: torch.dtype) -> None:
        self._attend = attend
        self._specs = enumerate(attention)
        self._dtype = dtype

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None, _: dict[str, Any]
    ) -> torch.Tensor:
        """q [1, Q, T, D], k [1, K, T, D], v [1, K, T, Dv], in transformers' layout -> [1, T, Q, Dv]."""
        layer, spec = next(self._specs)
        width = v.shape[-1]
        q, k, v = (F.pad(x[0], (0, spec.head_dim - x.shape[-1])).to(self._dtype) for x in (q, k, v))
        out = self._attend(layer, q.transpose(0, 1), torch.cat((k, v)).transpose(0, 1), sinks)
        return out.view(1, q.shape[1], spec.heads, spec.head_dim)[..., :width]


class _Given(torch.nn.Module):
    """Takes the place of a model's layers and returns hidden states that are already computed."""

    def __init__(self, output_type: Any) -> None:
        super().__init__()
        self._output_type = output_type

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> Any:
        return self._output_type(last_hidden_state=inputs_embeds)

    @property
    def decoder(self) -> torch.nn.Module:
        """OPT's class accesses it."""
        return self


def _layers_name(model: PreTrainedModel) -> str:
    """Return the name under which the class of the whole model keeps its layers."""
    named: str = model.base_model_prefix
    return named if named in model._modules else "model"


def _head_alone(model: PreTrainedModel, output_type: Any) -> torch.nn.Module:
    """Return the model without its layers, sharing its weights: it computes what its class does to given
    hidden states.
    """
    head: torch.nn.Module = copy.copy(model)
    head._modules = {**model._modules, _layers_name(model): _Given(output_type)}
    return head


def _config(folder: Path) -> PretrainedConfig:
    """Return the folder's config; refuse whole kinds of models before their weights are read."""
    _demand_layers(read_object(folder / "config.json"))
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers raises almost anything for a config that it does not accept
        raise ModelError(f"config.json: transformers cannot read it: {_first_line(error)}") from error
    name = _name(config)
    if config.is_encoder_decoder:
        raise ModelError(f"config.json: {name} has an encoder; only decoder-only models are supported")
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelError(f"config.json: transformers has no causal language model of type {name}")
    kind = AutoModelForCausalLM._model_mapping[type(config)]
    if kind._is_stateful:
        raise ModelError(f"config.json: {name} keeps state besides keys and values, which cannot be forked by blocks")
    if not kind._supports_attention_backend:
        raise ModelError(f"config.json: the attention of {name} is not behind transformers' attention interface")
    return config


def _demand_layers(settings: dict[str, Any]) -> None:
    """Raise ModelError for an impossible number of layers: transformers makes all layers before it reads a tensor."""
    inner = settings.get("text_config")
    for part in (settings, inner if isinstance(inner, dict) else {}):
        for key in _LAYERS:
            if isinstance(part.get(key), int):
                Fields(part, "config.json").layers(key)


def _unpacking(config: PretrainedConfig) -> dict[str, Any]:
    """Return what makes transformers turn gpt-oss's packed experts into plain floats; nothing for
    unquantized models.
    """
    whole, text = (getattr(each, "quantization_config", None) for each in (config, config.get_text_config()))
    packed = whole or text
    if not packed:
        return {}
    if not isinstance(packed, dict) or packed.get("quant_method") != "mxfp4":
        raise ModelError("config.json: quantized checkpoints are not supported; use unquantized safetensors or a GGUF")
    return {"quantization_config": Mxfp4Config(dequantize=True)}


def _load(folder: Path, config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    unpacking = _unpacking(config)
    try:
        with _without_progress_bar():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=SURVEYED,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **unpacking,
            )
    except Exception as error:  # as above
        raise ModelError(f"transformers cannot load {folder.name}: {_first_line(error)}") from error
    for what, key in (("lacks", "missing_keys"), ("has, unknown to the model,", "unexpected_keys")):
        if names := report[key]:
            raise ModelError(f"the checkpoint {what} {len(names)} tensors: {min(names)}")
    loaded: PreTrainedModel = model.eval()
    # transformers 5.17 leaves unpacked weights in bfloat16, which holds them exactly, but would also compute in it.
    return loaded.float() if dtype == torch.float32 else loaded


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    """Switch off transformers' bars, and leave a program its own."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _own(model: PreTrainedModel) -> None:
    """Copy the weights, one after the other, that are still their file's: transformers maps the file and copies only
    what it converts, so the model would change with the file, and a shorter one would end the process.
    """
    for each in (*model.parameters(), *model.buffers()):
        if not each.untyped_storage().resizable():  # as memory that torch allocates is, and a mapping is not
            each.data = each.data.clone()


def _lengths(config: PretrainedConfig) -> tuple[int, int]:
    """Return the longest sequence that the model was made for, and the longest that may be asked for, in tokens.

    Of several kinds of layers, the one with the shortest decides.
    """
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        raise ModelError(f"config.json: max_position_embeddings must be a whole number, not {limit!r}")
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [each for each in rope.values() if isinstance(each, dict)] or [rope]
    made_for, longest = zip(*[_scaled(limit, Fields(kind, "rope")) for kind in kinds], strict=True)
    return min(made_for), min(longest)


def _scaled(limit: int, rope: Fields) -> tuple[int, int]:
    """Return the same for one kind of layer, from max_position_embeddings."""
    kind, original = rope.get("rope_type"), rope.whole("original_max_position_embeddings", default=limit)
    if kind == "longrope":
        # Beyond it transformers rotates all positions, including the cached ones, by other frequencies.
        return min(limit, original), min(limit, original)
    if kind not in ("linear", "yarn"):
        return limit, limit
    factor = rope.number("factor", default=1.0)
    if not 0 < factor < inf:
        raise rope.refuse(f"the factor must be positive, not {factor:g}")
    longest = max(limit, int(min(factor * (original if kind == "yarn" else limit), LONGEST)))
    return longest if kind == "yarn" else limit, longest


def _name(config: PretrainedConfig) -> str:
    named = config.architectures
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else str(config.model_type)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

"""The engine without its server on a machine that has only torch, Triton, transformers, NumPy and their dependencies.

Run as a process of its own: it hides every other installed package, imports all modules of the engine except its
server's, then writes a tiny model of random numbers and steps a core with it to the end. It prints the result as JSON.
"""

from __future__ import annotations

import json
import pkgutil
import re
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from types import ModuleType

ROOTS = ("torch", "triton", "transformers", "numpy")
SERVER = ("__main__", "channel", "library", "options", "server", "text")  # the serving parts, which need more packages
COMMANDS = {"typer"}  # needed only by command-line programs, with all its own dependencies
FORMATS = ("engine.models.gguf_file", "engine.models.gguf_blocks")  # imported with the first file of its format


class _Hidden(PathFinder):
    """Finds modules as Python does, except these names, which it reports as not installed."""

    names: frozenset[str] = frozenset()

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As PathFinder.find_spec; None for hidden names."""
        return None if fullname.partition(".")[0] in cls.names else super().find_spec(fullname, path, target)


def _brought(roots: Sequence[str]) -> set[str]:
    """Return the normalized names of these distributions and of all that they depend on."""
    found: set[str] = set()
    pending = list(roots)
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in found | COMMANDS:
            continue
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            continue
        found.add(name)
        pending += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in needed if "extra ==" not in line]
    return found


def hide_others() -> frozenset[str]:
    """Hide everything but the four packages, their dependencies and this repository; return the hidden names."""
    kept = _brought(ROOTS) | {"nproxy"}  # the repository's own distribution, which contains the engine
    owners = packages_distributions()
    normal = {name: {re.sub(r"[-_.]+", "-", owner).lower() for owner in mine} for name, mine in owners.items()}
    _Hidden.names = frozenset(name for name, mine in normal.items() if not mine & kept) | {"nproxy"}
    sys.meta_path[:] = [_Hidden if finder is PathFinder else finder for finder in sys.meta_path]
    return _Hidden.names


def modules() -> list[str]:
    """Return the engine's modules that must be importable without the server's packages."""
    import engine

    walked = [module.name for module in pkgutil.walk_packages(engine.__path__, "engine.") if not _serves(module.name)]
    return [name for name in walked if name not in FORMATS]


def _serves(name: str) -> bool:
    return name.split(".")[1] in SERVER


def step_a_core(folder: Path) -> dict[str, list[int]]:
    """Draw two choices from a tiny random model through the core, and return their tokens."""
    import torch
    from safetensors.torch import save_file

    from engine.config import EngineConfig
    from engine.core import Core
    from engine.cpu_runner import CpuRunner
    from engine.messages import Add, Sampling

    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 61,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "rope_theta": 10000.0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": (61, 32), "model.norm.weight": (32,)}
    for i in range(2):
        at = f"model.layers.{i}."
        shapes |= {f"{at}{norm}_layernorm.weight": (32,) for norm in ("input", "post_attention")}
        shapes |= {f"{at}self_attn.{norm}_norm.weight": (16,) for norm in "qk"}
        shapes |= {f"{at}self_attn.{p}_proj.weight": (rows, 32) for p, rows in (("q", 64), ("k", 32), ("v", 32))}
        shapes |= {f"{at}self_attn.o_proj.weight": (32, 64), f"{at}mlp.down_proj.weight": (32, 48)}
        shapes |= {f"{at}mlp.{p}_proj.weight": (48, 32) for p in ("gate", "up")}
    torch.manual_seed(5)
    save_file({name: torch.randn(shape) * 0.2 for name, shape in shapes.items()}, folder / "model.safetensors")
    settings = EngineConfig(str(folder), dtype="float32", num_blocks=32, block_size=4)
    core = Core(settings, CpuRunner.load(settings))
    core.add(Add.alike(0, tuple(range(1, 12)), 2, 7, 6, Sampling(), frozenset()))
    tokens: dict[str, list[int]] = {"0": [], "1": []}
    while core.has_work:
        done = core.step()
        for failed in done.failed:
            raise RuntimeError(failed.message)
        for drawn in done.tokens:
            tokens[str(drawn.choice)].append(drawn.token)
    return tokens


def main() -> None:
    """Hide packages, import all modules, step a core, and print the result."""
    hidden = hide_others()
    names = modules()
    for name in names:
        import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        tokens = step_a_core(Path(folder))
    loaded = sorted({name.partition(".")[0] for name in sys.modules} & hidden)
    print(json.dumps({"hidden": sorted(hidden), "modules": names, "loaded": loaded, "tokens": tokens}))


if __name__ == "__main__":
    main()

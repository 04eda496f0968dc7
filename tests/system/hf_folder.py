"""Write a GGUF of the Llama family as a Hugging Face folder: `python hf_folder.py MODEL.gguf FOLDER`.

`transformers serve` loads folders whose config names an architecture, and a config read from a GGUF names none. A model
loaded from a GGUF cannot save itself, so its weights are copied into a fresh model. They are stored in bf16.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM


def convert(gguf: Path, folder: Path) -> None:
    """Fill `folder` with the safetensors, configs and tokenizer of `gguf`; the folder appears only when complete."""
    loaded = LlamaForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = loaded.config
    del config.quantization_config
    config.dtype = torch.bfloat16
    fresh = LlamaForCausalLM(config).to(torch.bfloat16)
    fresh.load_state_dict(loaded.state_dict())
    fresh.generation_config = loaded.generation_config
    unfinished = folder.with_suffix(".unfinished")
    fresh.save_pretrained(unfinished)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(unfinished)
    unfinished.rename(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))

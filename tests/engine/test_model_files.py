"""Files of a model that are none, that are too large, or whose errors must be found again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from engine.errors import ModelError
from engine.model_files import MOST_BYTES, naming
from engine.models.load import load_model
from engine.models.lora import read_adapter
from engine.options import argument_parser, engine_config
from engine.text.tokenizer import load_tokenizer
from tests.fakes import tiny_chat


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer_config.json", "model.safetensors", "a.gguf"]
)
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, name: str) -> None:
    """Reading a pipe waits for whoever may write into it; a device, as here, may never end."""
    folder = tiny_chat.save(tmp_path / "model")
    file = folder / name
    file.unlink(missing_ok=True)
    file.symlink_to(os.devnull)
    model = file if file.suffix == ".gguf" else folder
    with pytest.raises(ModelError, match=f"{name} cannot be read: it is not a regular file$"):
        load_tokenizer(model)
        load_model(model, torch.float32, None)


def test_an_adapter_that_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8}')
    (tmp_path / "adapter_model.safetensors").symlink_to(os.devnull)
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors cannot be read: it is not a regular file$"):
        read_adapter(tmp_path, torch.float32)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_what_is_read_whole_may_not_be_larger_than_any_such_file(tmp_path: Path, name: str) -> None:
    tiny_chat.save(tmp_path)
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, MOST_BYTES + 1)
    with pytest.raises(ModelError, match=rf"{name} cannot be read: it has 268435457 bytes"):
        load_tokenizer(tmp_path)
        load_model(tmp_path, torch.float32, None)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("tokens are missing", "here/model: tokens are missing"),
        ("here/model/config.json is empty", "here/model/config.json is empty"),
        ("the header is wrong:\n  at line 1\n", "here/model: the header is wrong: at line 1"),
        ("x" * 1000, f"here/model: {'x' * 487}…"),
    ],
)
def test_an_error_is_one_line_that_names_the_model(said: str, told: str) -> None:
    with pytest.raises(ModelError) as raised, naming(Path("here/model")):
        raise ModelError(said)
    assert str(raised.value) == told


def test_what_the_system_refuses_is_an_error_of_the_model(tmp_path: Path) -> None:
    model = Path("here/model")
    with pytest.raises(ModelError, match=r"^here/model/config\.json cannot be read: denied$"), naming(model):
        raise PermissionError(errno.EACCES, "denied", "here/model/config.json")
    with pytest.raises(ModelError, match=r"^here/model cannot be read: broken$"), naming(model):
        raise OSError(errno.EIO, "broken")
    with pytest.raises(ModelError, match=r"File name too long|no such file or folder"):
        engine_config(argument_parser().parse_args([str(tmp_path / ("a" * 300))]))


def test_what_is_wrong_with_a_model_names_it(tmp_path: Path) -> None:
    folder = tiny_chat.save(tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelError, match=f"^{folder}: the model's chat template is not valid"):
        load_tokenizer(folder)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "num_attention_heads": null}')
    with pytest.raises(ModelError, match=rf"^{folder}: config\.json: num_attention_heads must be a whole number"):
        load_model(folder, torch.float32, None)

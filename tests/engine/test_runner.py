"""The runner as the engine calls it: batches in, tokens out, on a small model and on the real default."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from engine.batch import Batch, Chunk, Draw, Row, StepOutput, plan_items
from engine.config import EngineConfig
from engine.errors import ConfigError, ModelError
from engine.messages import Sampling
from engine.runner import Runner
from tests.fakes.tiny_models import save

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SIZE = 16
GREEDY = Draw(0, 0, 0, Sampling(temperature=0.0))


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class Fork:
    """n choices over one prompt, run step by step as a scheduler would: shared full blocks, a copied last one."""

    def __init__(self, runner: Runner, prompt: list[int], draws: list[Draw], first_block: int = 0) -> None:
        self.runner, self.prompt, self.draws = runner, prompt, draws
        full, needed = len(prompt) // SIZE, -(-len(prompt) // SIZE)
        own = 6
        self.table = tuple(range(first_block, first_block + needed))
        base = first_block + needed
        self.tables = [(*self.table[:full], *range(base + i * own, base + (i + 1) * own)) for i in range(len(draws))]
        self.copies = tuple((self.table[-1], table[full]) for table in self.tables) if needed > full else ()
        self.tokens: list[list[int]] = [[] for _ in draws]

    def chunk(self, start: int = 0, end: int | None = None) -> Chunk:
        """A stretch of the prompt; it draws every choice's first token where it ends the prompt."""
        end = len(self.prompt) if end is None else end
        draws = tuple(self._draw(i) for i in range(len(self.draws))) if end == len(self.prompt) else ()
        return Chunk(0, tuple(self.prompt[start:end]), start, self.table, draws)

    def rows(self) -> list[Row]:
        return [
            Row(i, mine[-1], len(self.prompt) + len(mine) - 1, self.tables[i], self._draw(i))
            for i, mine in enumerate(self.tokens)
        ]

    def _draw(self, i: int) -> Draw:
        return replace(self.draws[i], sequence=i, position=len(self.prompt) + len(self.tokens[i]))

    def take(self, drawn: tuple[tuple[int, int], ...]) -> None:
        for sequence, token in drawn:
            self.tokens[sequence].append(token)

    def run(self, new: int) -> list[list[int]]:
        """Prefill and draw `new` tokens for every choice."""
        self.take(self.runner.run(Batch(chunks=(self.chunk(),))).tokens)
        for step in range(new - 1):
            rows = self.rows()
            copies = self.copies if step == 0 else ()
            self.take(self.runner.run(Batch(copies, (), tuple(rows), plan_items(rows, SIZE, gate=32))).tokens)
        return self.tokens


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = tmp_path_factory.mktemp("tiny")
    save(folder)
    return Runner.load(EngineConfig(str(folder), dtype="float32", num_blocks=256, block_size=SIZE))


def _seeded(count: int, **settings: float) -> list[Draw]:
    return [replace(GREEDY, seed=40 + i, sampling=Sampling(**settings)) for i in range(count)]  # type: ignore[arg-type]


PROMPT = [random.Random(4).randrange(97) for _ in range(41)]


def test_ready(tiny: Runner) -> None:
    ready = tiny.ready
    assert (ready.vocab_size, ready.max_model_len, ready.blocks, ready.block_size) == (97, 256, 256, SIZE)
    assert ready.kv_bytes_per_token == 2 * 3 * 2 * 8 * 4
    assert (ready.eos_tokens, ready.device, ready.dtype) == ({2}, "cpu", "float32")


def test_an_empty_batch(tiny: Runner) -> None:
    assert tiny.run(Batch()) == StepOutput()


def test_output_is_in_the_order_of_the_batch(tiny: Runner) -> None:
    a = Chunk(7, (5, 6, 7), 0, (0,), (replace(GREEDY, sequence=71), replace(GREEDY, sequence=70)))
    middle = Chunk(8, (5, 6, 7), 0, (1,))
    b = Chunk(9, (9, 8), 0, (2,), (replace(GREEDY, sequence=9),))
    rows = (Row(4, 3, 0, (3,), replace(GREEDY, sequence=4)), Row(3, 3, 0, (4,), replace(GREEDY, sequence=3)))
    out = tiny.run(Batch(chunks=(a, middle, b), rows=rows, items=plan_items(rows, SIZE)))
    assert [sequence for sequence, _ in out.tokens] == [71, 70, 9, 4, 3]
    tokens = dict(out.tokens)
    assert tokens[71] == tokens[70]
    assert tokens[4] == tokens[3]


@pytest.mark.parametrize("settings", [{}, {"top_k": 20}, {"top_p": 0.8}], ids=str)
def test_choices_equal_single_requests(tiny: Runner, settings: dict[str, float]) -> None:
    draws = _seeded(6, **settings)
    together = Fork(tiny, PROMPT, draws).run(40)
    alone = [Fork(tiny, PROMPT, [draw], first_block=100 + 8 * i).run(40)[0] for i, draw in enumerate(draws)]
    assert together == alone
    assert len({tuple(tokens) for tokens in together}) == 6


def test_choices_beside_other_traffic(tiny: Runner) -> None:
    draws = _seeded(4)
    alone = Fork(tiny, PROMPT, draws).run(30)
    fork = Fork(tiny, PROMPT, draws)
    other = Fork(tiny, PROMPT[:20] * 3, _seeded(3), first_block=100)
    # The prompt in three chunks, beside the other's prompt in two; then both decode, the other one step ahead.
    tiny.run(Batch(chunks=(fork.chunk(0, 16), other.chunk(0, 32))))
    out = tiny.run(Batch(chunks=(fork.chunk(16, 25), other.chunk(32)))).tokens
    other.take(out)
    rows = other.rows()
    out = tiny.run(Batch(other.copies, (fork.chunk(25),), tuple(rows), plan_items(rows, SIZE))).tokens
    fork.take(out[:4])
    other.take(out[4:])
    for step in range(29):
        mine, others = fork.rows(), other.rows()
        both = [*others, *mine]
        copies = fork.copies if step == 0 else ()
        out = tiny.run(Batch(copies, (), tuple(both), plan_items(both, SIZE))).tokens
        other.take(out[:3])
        fork.take(out[3:])
    assert fork.tokens == alone


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(ConfigError, match="max_model_len is 257; the model was made for 256 tokens"):
        Runner.load(EngineConfig(str(tmp_path), max_model_len=257))
    with pytest.raises(ModelError, match="does not exist"):
        Runner.load(EngineConfig(str(tmp_path / "nowhere")))


def test_bfloat16_runs(tmp_path: Path) -> None:
    save(tmp_path)
    runner = Runner.load(EngineConfig(str(tmp_path), dtype="bfloat16", num_blocks=64))
    assert runner.ready.kv_bytes_per_token == 2 * 3 * 2 * 8 * 2
    tokens = Fork(runner, PROMPT, _seeded(3)).run(10)
    assert all(len(mine) == 10 for mine in tokens)


# ---- the real default model


@pytest.fixture(scope="module")
def real(default_model: Path) -> Runner:
    return Runner.load(EngineConfig(str(default_model), dtype="float32", num_blocks=256, block_size=SIZE))


@pytest.fixture(scope="module")
def transformers_model(default_model: Path) -> PreTrainedModel:
    """The same file as transformers reads it, in float32 (its own way to load it asks for one more package)."""
    model = LlamaForCausalLM(AutoConfig.from_pretrained(default_model.parent, gguf_file=default_model.name)).float()
    tensors = load_gguf_checkpoint(default_model, return_tensors=True, model_to_load=model)["tensors"]
    loaded = model.load_state_dict(tensors, strict=False)
    assert (loaded.missing_keys, loaded.unexpected_keys) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.eval()


@pytest.fixture(scope="module")
def prompts(default_model: Path) -> list[list[int]]:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        default_model.parent, gguf_file=default_model.name
    )
    asked = ["Write a long story about a dragon.", "What is the capital of France?", "Count from 1 to 50."]
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in asked
    ]
    return [*chats, tokenizer("def fibonacci(n):\n    ")["input_ids"]]


@pytest.mark.model
@pytest.mark.timeout(300)
def test_greedy_equals_transformers_generate(
    real: Runner, transformers_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    torch.set_num_threads(1)  # beside other tests two threads wait for each other most of the time
    prompt = prompts[0]
    answer = transformers_model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=64, do_sample=False
    )
    expected = answer[0, len(prompt) :].tolist()
    assert len(expected) == 64
    assert Fork(real, prompt, [GREEDY]).run(64)[0] == expected


@pytest.mark.model
@pytest.mark.timeout(300)
def test_greedy_equals_transformers_token_by_token(
    real: Runner, transformers_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    # What transformers would choose after each of our tokens: one pass of its model a prompt.
    torch.set_num_threads(1)
    for prompt in prompts:
        tokens = Fork(real, prompt, [GREEDY]).run(64)[0]
        with torch.inference_mode():
            logits = transformers_model(torch.tensor([prompt + tokens])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens


@pytest.mark.model
@pytest.mark.timeout(300)
def test_logits_are_near_transformers(
    real: Runner, transformers_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    torch.set_num_threads(1)
    for prompt in prompts:
        batch = Batch(chunks=(Chunk(0, tuple(prompt), 0, tuple(range(8))),))
        with torch.inference_mode():
            ours = real._model.logits(real._forward(batch))
            expected = transformers_model(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=2e-3)


@pytest.mark.model
@pytest.mark.timeout(300)
def test_choices_of_the_real_model_equal_single_requests(real: Runner, prompts: list[list[int]]) -> None:
    torch.set_num_threads(1)
    draws = [replace(draw, sampling=Sampling(temperature=0.8)) for draw in _seeded(4)]
    together = Fork(real, prompts[0], draws).run(48)
    alone = [Fork(real, prompts[0], [draw], first_block=60 + 12 * i).run(48)[0] for i, draw in enumerate(draws)]
    assert together == alone
    assert len({tuple(tokens) for tokens in together}) == 4

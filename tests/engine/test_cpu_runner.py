"""The runner as the engine calls it: batches in, tokens out, on a small model and on the real default."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gguf
import pytest
import torch
from transformers import AutoConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from engine.batch import Batch, Chunk, Draw, Row, StepOutput
from engine.config import EngineConfig
from engine.core import Core
from engine.cpu_runner import CpuRunner
from engine.errors import ConfigError, ModelError
from engine.kv_spans import plan_kv_spans
from engine.messages import Add, Logprobs, Sampling
from engine.passes import Pass
from engine.sampling import logprobs as raw_logprobs
from engine.text.tokenizer import load_tokenizer
from tests.fakes.tiny_models import make, reference_logits, save

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SIZE = 16
GREEDY = Draw(0, 0, 0, Sampling(temperature=0.0))


class Fork:
    """n choices over one prompt, run step by step as a scheduler would: shared full blocks, a copied last one."""

    def __init__(self, runner: CpuRunner, prompt: list[int], draws: list[Draw], first_block: int = 0) -> None:
        self.runner, self.prompt, self.draws = runner, prompt, draws
        self.first = 100 * first_block  # its sequences are numbered from here
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
        return Chunk(self.first, tuple(self.prompt[start:end]), start, self.table, draws)

    def rows(self) -> list[Row]:
        return [
            Row(self.first + i, mine[-1], len(self.prompt) + len(mine) - 1, self.tables[i], self._draw(i))
            for i, mine in enumerate(self.tokens)
        ]

    def _draw(self, i: int) -> Draw:
        return replace(self.draws[i], sequence=self.first + i, position=len(self.prompt) + len(self.tokens[i]))

    def take(self, drawn: tuple[tuple[int, int], ...]) -> None:
        for sequence, token in drawn:
            self.tokens[sequence - self.first].append(token)

    def run(self, new: int) -> list[list[int]]:
        """Prefill and draw `new` tokens for every choice."""
        self.take(self.runner.submit(Batch(chunks=(self.chunk(),))).tokens)
        for step in range(new - 1):
            rows = self.rows()
            copies = self.copies if step == 0 else ()
            self.take(self.runner.submit(Batch(copies, (), tuple(rows), plan_kv_spans(rows, SIZE, gate=32))).tokens)
        return self.tokens


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> CpuRunner:
    folder = tmp_path_factory.mktemp("tiny")
    save(folder)
    return CpuRunner.load(EngineConfig(str(folder), dtype="float32", num_blocks=256, block_size=SIZE))


def _seeded(count: int, **settings: float) -> list[Draw]:
    return [replace(GREEDY, seed=40 + i, sampling=Sampling(**settings)) for i in range(count)]  # type: ignore[arg-type]


PROMPT = random.Random(4).choices(range(97), k=41)


def test_ready(tiny: CpuRunner) -> None:
    ready = tiny.ready
    assert (ready.vocab_size, ready.max_model_len, ready.blocks, ready.block_size) == (97, 256, 256, SIZE)
    assert ready.kv_bytes_per_token == 2 * 3 * 2 * 8 * 4
    assert (ready.eos_tokens, ready.device, ready.dtype) == (frozenset({2}), "cpu", "float32")


def test_an_empty_batch(tiny: CpuRunner) -> None:
    assert tiny.submit(Batch()) == StepOutput()


def test_output_is_in_the_order_of_the_batch(tiny: CpuRunner) -> None:
    a = Chunk(7, (5, 6, 7), 0, (0,), (replace(GREEDY, sequence=71), replace(GREEDY, sequence=70)))
    middle = Chunk(8, (5, 6, 7), 0, (1,))
    b = Chunk(9, (9, 8), 0, (2,), (replace(GREEDY, sequence=9),))
    rows = (Row(4, 3, 0, (3,), replace(GREEDY, sequence=4)), Row(3, 3, 0, (4,), replace(GREEDY, sequence=3)))
    out = tiny.submit(Batch(chunks=(a, middle, b), rows=rows, kv_spans=plan_kv_spans(rows, SIZE)))
    assert [sequence for sequence, _ in out.tokens] == [71, 70, 9, 4, 3]
    tokens = dict(out.tokens)
    assert tokens[71] == tokens[70]
    assert tokens[4] == tokens[3]


@pytest.mark.parametrize("settings", [{}, {"top_k": 20}, {"top_p": 0.8}], ids=str)
def test_choices_equal_single_requests(tiny: CpuRunner, settings: dict[str, float]) -> None:
    draws = _seeded(6, **settings)
    together = Fork(tiny, PROMPT, draws).run(40)
    alone = [Fork(tiny, PROMPT, [draw], first_block=100 + 8 * i).run(40)[0] for i, draw in enumerate(draws)]
    assert together == alone
    assert len({tuple(tokens) for tokens in together}) == 6


def test_choices_beside_other_traffic(tiny: CpuRunner) -> None:
    draws = _seeded(4)
    alone = Fork(tiny, PROMPT, draws).run(30)
    fork = Fork(tiny, PROMPT, draws)
    other = Fork(tiny, PROMPT[:20] * 3, _seeded(3), first_block=100)
    # The prompt in three chunks, beside the other's prompt in two; then both decode, the other one step ahead.
    tiny.submit(Batch(chunks=(fork.chunk(0, 16), other.chunk(0, 32))))
    out = tiny.submit(Batch(chunks=(fork.chunk(16, 25), other.chunk(32)))).tokens
    other.take(out)
    rows = other.rows()
    out = tiny.submit(Batch(other.copies, (fork.chunk(25),), tuple(rows), plan_kv_spans(rows, SIZE))).tokens
    fork.take(out[:4])
    other.take(out[4:])
    for step in range(29):
        mine, others = fork.rows(), other.rows()
        both = [*others, *mine]
        copies = fork.copies if step == 0 else ()
        out = tiny.submit(Batch(copies, (), tuple(both), plan_kv_spans(both, SIZE))).tokens
        other.take(out[:3])
        fork.take(out[3:])
    assert fork.tokens == alone


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_a_context_beyond_the_pool_takes_no_memory(
    tmp_path: Path, tiny: CpuRunner, kernels: Literal["auto", "torch"]
) -> None:
    """Some models are made for millions of tokens; what turns their keys is prepared for those that fit in."""
    save(tmp_path, max_position_embeddings=10**12)
    settings = EngineConfig(str(tmp_path), dtype="float32", num_blocks=256, block_size=SIZE, kernels=kernels)
    endless = CpuRunner.load(settings)
    assert endless.ready.max_model_len == 10**12
    draws = _seeded(2)
    assert Fork(endless, PROMPT, draws).run(9) == Fork(tiny, PROMPT, draws).run(9)


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(ConfigError, match="max_model_len is 257; the model supports 256 tokens"):
        CpuRunner.load(EngineConfig(str(tmp_path), max_model_len=257))
    with pytest.raises(ConfigError, match=r"num_blocks is 999999999999, which is .* GiB"):
        CpuRunner.load(EngineConfig(str(tmp_path), num_blocks=999_999_999_999))
    with pytest.raises(ModelError, match="does not exist"):
        CpuRunner.load(EngineConfig(str(tmp_path / "nowhere")))


def test_weights_that_do_not_fit_into_memory_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        return torch.empty(1 << 60, dtype=torch.int8)

    monkeypatch.setattr("engine.cpu_runner.load_model", full)
    with pytest.raises(ConfigError, match=f"^there is not enough memory for {tmp_path}$"):
        CpuRunner.load(EngineConfig(str(tmp_path)))


def test_the_pool_is_a_part_of_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path)
    monkeypatch.setattr("engine.cpu_runner.ram", lambda: 1 << 24)
    blocks = CpuRunner.load(EngineConfig(str(tmp_path), dtype="float32", kv_fraction=0.5)).ready.blocks
    assert blocks == (1 << 23) // (16 * 2 * 3 * 2 * 8 * 4)
    assert CpuRunner.load(EngineConfig(str(tmp_path), dtype="float32")).ready.blocks == blocks // 2


def test_a_shorter_model(tmp_path: Path) -> None:
    save(tmp_path)
    assert CpuRunner.load(EngineConfig(str(tmp_path), max_model_len=40, num_blocks=8)).ready.max_model_len == 40


def test_a_linear_scaling_makes_longer_sequences_possible(tmp_path: Path) -> None:
    save(tmp_path, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})
    lengths = [EngineConfig(str(tmp_path), max_model_len=asked, num_blocks=8) for asked in (None, 1024)]
    assert [CpuRunner.load(settings).ready.max_model_len for settings in lengths] == [256, 1024]
    with pytest.raises(ConfigError, match="the model supports 1024 tokens"):
        CpuRunner.load(EngineConfig(str(tmp_path), max_model_len=1025))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_run(tmp_path: Path, dtype: Literal["bfloat16", "float16"]) -> None:
    save(tmp_path)
    runner = CpuRunner.load(EngineConfig(str(tmp_path), dtype=dtype, num_blocks=64))
    assert runner.ready.dtype == dtype
    assert runner.ready.kv_bytes_per_token == 2 * 3 * 2 * 8 * 2
    tokens = Fork(runner, PROMPT, _seeded(3)).run(10)
    assert all(len(mine) == 10 for mine in tokens)


# ---- log probabilities


def _told(fork: Fork, cuts: Sequence[int], new: int, top: int) -> tuple[list[Logprobs], list[list[Logprobs]]]:
    """Those of the prompt, computed in chunks that end at `cuts`, and of `new` tokens of every choice."""
    fork.draws = [replace(draw, logprobs=top) for draw in fork.draws]
    prompt: list[Logprobs] = []
    choices: list[list[Logprobs]] = [[] for _ in fork.draws]
    for start, end in pairwise((0, *cuts, len(fork.prompt))):
        followers = tuple(fork.prompt[start + 1 : end + 1])
        chunk = replace(fork.chunk(start, end), next_tokens=followers, prompt_logprobs=top)
        output = fork.runner.submit(Batch(chunks=(chunk,)))
        prompt += output.prompt_logprobs[0]
    for step in range(new):
        if step:
            rows = fork.rows()
            copies = fork.copies if step == 1 else ()
            output = fork.runner.submit(Batch(copies, (), tuple(rows), plan_kv_spans(rows, SIZE, gate=32)))
            assert not output.prompt_logprobs
        fork.take(output.tokens)
        for choice, told in output.logprobs.items():
            choices[choice].append(told)
    return prompt, choices


def _check_told(told: Sequence[Logprobs], tokens: Sequence[int], logits: torch.Tensor, top: int, near: float) -> None:
    """Against logits [T, V] of which the i-th are those that tokens[i] was drawn from."""
    assert len(told) == len(tokens) == len(logits)
    for one, token, exact in zip(told, tokens, logits.log_softmax(-1), strict=True):
        assert one.own == pytest.approx(float(exact[token]), abs=near)
        assert [value for _, value in one.top] == pytest.approx(exact.topk(top).values.tolist(), abs=near)
        assert [value for _, value in one.top] == pytest.approx([float(exact[other]) for other, _ in one.top], abs=near)
        # Two tokens nearer to each other than both models are may stand either way round.
        assert (exact > exact[token] + 2 * near).sum() < one.rank <= (exact >= exact[token] - 2 * near).sum()


def test_log_probabilities_equal_transformers_at_every_position(tiny: CpuRunner) -> None:
    model = make()
    for cuts in ((), (16,), (16, 32)):
        fork = Fork(tiny, PROMPT, _seeded(4))
        prompt, choices = _told(fork, cuts, new=30, top=20)
        with torch.inference_mode():
            logits = model(torch.tensor([PROMPT + tokens for tokens in fork.tokens])).logits
        _check_told(prompt, PROMPT[1:], logits[0, : len(PROMPT) - 1], 20, near=1e-4)
        for told, tokens, row in zip(choices, fork.tokens, logits, strict=True):
            _check_told(told, tokens, row[len(PROMPT) - 1 : -1], 20, near=1e-4)


def test_a_prompt_is_scored_in_slices(tiny: CpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = _told(Fork(tiny, PROMPT, _seeded(1)), (16,), new=1, top=3)
    widths: list[int] = []
    unwatched = type(tiny._model).logits

    def watched(self: Any, x: torch.Tensor) -> torch.Tensor:
        widths.append(len(x))
        return unwatched(self, x)

    monkeypatch.setattr(type(tiny._model), "logits", watched)
    monkeypatch.setattr(raw_logprobs, "_SLICE", 97 * 6)
    sliced, _ = _told(Fork(tiny, PROMPT, _seeded(1)), (16,), new=1, top=3)
    assert widths == [6, 6, 4, 1, 6, 6, 6, 6]  # of 16 tokens; the one drawn from; of 24 more
    assert [one.own for one in sliced] == pytest.approx([one.own for one in whole], abs=1e-5)


def test_nothing_is_scored_unasked(tiny: CpuRunner) -> None:
    output = tiny.submit(Batch(chunks=(Fork(tiny, PROMPT, _seeded(2)).chunk(),)))
    assert (len(output.tokens), output.logprobs, output.prompt_logprobs) == (2, {}, {})


def test_several_prompts_are_scored_in_one_step(tiny: CpuRunner) -> None:
    a = Chunk(7, (5, 6, 7), 0, (0,), (), (6, 7), 2)
    unasked = Chunk(8, (5, 6), 0, (1,), (replace(GREEDY, sequence=8),))
    b = Chunk(9, (9, 8, 3), 0, (2,), (replace(GREEDY, sequence=9, logprobs=0),), (8, 3), 0)
    told = tiny.submit(Batch(chunks=(a, unasked, b))).prompt_logprobs
    for chunk in (a, b):
        (alone,) = tiny.submit(Batch(chunks=(chunk,))).prompt_logprobs.values()
        assert [one.own for one in told[chunk.sequence]] == pytest.approx([one.own for one in alone], abs=1e-5)
        assert [one.rank for one in told[chunk.sequence]] == [one.rank for one in alone]
    assert [len(one.top) for one in (*told[7], *told[9])] == [2, 2, 0, 0]


def test_masks_reach_the_draw(tiny: CpuRunner) -> None:
    fork = Fork(tiny, PROMPT, _seeded(3))
    masks = {0: bytes([0] * 4 + [1 << 3] + [0] * 8), 2: b"\0"}
    output = tiny.submit(Batch(chunks=(fork.chunk(),), masks=masks))
    assert (dict(output.tokens)[0], output.stuck) == (35, {2: "rules"})


# ---- the real default model


@pytest.fixture(scope="module")
def real(default_model: Path) -> CpuRunner:
    return CpuRunner.load(EngineConfig(str(default_model), dtype="float32", num_blocks=256, block_size=SIZE))


@pytest.fixture(scope="module")
def transformers_model(default_model: Path) -> PreTrainedModel:
    """The same file as transformers reads it, in float32 (its own way to load it asks for one more package)."""
    with pytest.MonkeyPatch.context() as patch, no_init_weights():
        # It reads the file's head again for each call, and makes the table of names anew for each module.
        patch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))
        patch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
        model = LlamaForCausalLM(AutoConfig.from_pretrained(default_model.parent, gguf_file=default_model.name)).float()
        tensors = load_gguf_checkpoint(default_model, return_tensors=True, model_to_load=model)["tensors"]
    loaded = model.load_state_dict(tensors, strict=False)
    assert (loaded.missing_keys, loaded.unexpected_keys) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.eval()


@pytest.fixture(scope="module")
def prompts(default_model: Path) -> list[list[int]]:
    tokenizer = load_tokenizer(default_model)
    assert tokenizer.template is not None
    asked = ["Write a long story about a dragon.", "What is the capital of France?", "Count from 1 to 50."]
    chats = [tokenizer.template.render([{"role": "user", "content": text}], {}) for text in asked]
    return [*(list(tokenizer.encode_chat(chat)) for chat in chats), list(tokenizer.encode("def fibonacci(n):\n    "))]


@pytest.mark.model
@pytest.mark.timeout(300)
def test_greedy_equals_transformers(
    real: CpuRunner, transformers_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    """After each of our tokens transformers would choose the next of them: by itself it would say the same."""
    torch.set_num_threads(1)  # beside other tests two threads wait for each other most of the time
    for prompt, count in zip(prompts, (32, 16, 16, 16), strict=True):
        tokens = Fork(real, prompt, [GREEDY]).run(count)[0]
        assert len(tokens) == count
        with torch.inference_mode():
            logits = transformers_model(torch.tensor([prompt + tokens])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens


@pytest.mark.model
@pytest.mark.timeout(300)
def test_logits_are_near_transformers(
    real: CpuRunner, transformers_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    torch.set_num_threads(1)
    for prompt in prompts:
        batch = Batch(chunks=(Chunk(0, tuple(prompt), 0, tuple(range(8)), pooling="mean"),))  # asks for every token
        with torch.inference_mode():
            ours = real._model.logits(real._forward(Pass(batch, ())))
            expected = transformers_model(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=2e-3)


@pytest.mark.model
@pytest.mark.timeout(300)
def test_choices_of_the_real_model_equal_single_requests(real: CpuRunner, prompts: list[list[int]]) -> None:
    torch.set_num_threads(1)
    draws = [replace(draw, sampling=Sampling(temperature=0.8)) for draw in _seeded(4)]
    together = Fork(real, prompts[0], draws).run(12)
    alone = [Fork(real, prompts[0], [draw], first_block=60 + 12 * i).run(12)[0] for i, draw in enumerate(draws)]
    assert together == alone
    assert len({tuple(tokens) for tokens in together}) == 4


@pytest.mark.model
@pytest.mark.timeout(300)
def test_log_probabilities_of_the_real_model_equal_transformers(
    real: CpuRunner, transformers_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    torch.set_num_threads(1)
    prompt = prompts[0]
    fork = Fork(real, prompt, [replace(draw, sampling=Sampling(temperature=1.5)) for draw in _seeded(3)])
    scored, choices = _told(fork, (16, 32), new=12, top=5)
    with torch.inference_mode():
        logits = transformers_model(torch.tensor([prompt + tokens for tokens in fork.tokens])).logits
    # The logits differ by up to 2e-3 (test_logits_are_near_transformers).
    _check_told(scored, prompt[1:], logits[0, : len(prompt) - 1], 5, near=2e-3)
    for told, tokens, row in zip(choices, fork.tokens, logits, strict=True):
        _check_told(told, tokens, row[len(prompt) - 1 : -1], 5, near=2e-3)


def test_numbers_that_overflow_in_one_request_are_not_read_by_the_next(tmp_path: Path) -> None:
    model = make()
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = 1e5  # more than float16 holds
    model.save_pretrained(tmp_path)
    config = EngineConfig(str(tmp_path), dtype="float16", kernels="torch", num_blocks=8, prefix_cache=False)

    def told(*prompts: tuple[int, ...]) -> list[list[str | int]]:
        """What each prompt gets, one after the other: its tokens, or why it fails."""
        engine, heard = Core(config, CpuRunner.load(config)), []
        for group, prompt in enumerate(prompts):
            engine.add(Add.alike(group, prompt, 3, 5, 20, Sampling(), frozenset()))
            one: list[str | int] = []
            while engine.has_work:
                done = engine.step()
                one += [failed.message for failed in done.failed] + [drawn.token for drawn in done.tokens]
            heard.append(one)
        return heard

    overflowing, good = (7,) * 60, tuple(range(10, 31))
    assert told(overflowing, good) == [["the model's logits are not finite numbers"], *told(good)]


@pytest.mark.parametrize("of", ["the prompt", "the drawn token"])
def test_log_probabilities_that_are_no_numbers_fail_their_request_alone(tmp_path: Path, of: str) -> None:
    """Behind token 7, the logit of token 96 is more than float16 holds."""
    model = make()
    with torch.no_grad():
        behind = model.base_model(torch.tensor([[7]])).last_hidden_state[0, 0]
        model.get_output_embeddings().weight[96] = behind / behind.norm() * 6e4
        follower = min(range(10, 90), key=lambda token: _last_logit(model, [7, token], 96))
    model.save_pretrained(tmp_path)
    config = EngineConfig(str(tmp_path), dtype="float16", num_blocks=64)
    core = Core(config, CpuRunner.load(config))
    never = Sampling(bad_words=((96,),))  # so there is a token to draw
    one = Add.alike(1, (7, follower) if of == "the prompt" else (7,), 2, 5, 1, never, frozenset())
    one = replace(one, prompt_logprobs=1) if of == "the prompt" else replace(one, logprobs=1)
    core.add(one)
    core.add(replace(one, group=2, prompt=(5, 6)))
    core.add(replace(one, group=3, logprobs=None, prompt_logprobs=None))
    done = core.step()
    assert [(failed.group, failed.kind) for failed in done.failed] == [(1, "failed")]
    assert done.failed[0].message == "the model's logits are not finite numbers"
    assert {(drawn.group, drawn.choice) for drawn in done.tokens} == {(group, i) for group in (2, 3) for i in range(2)}
    assert (core.has_work, core.stats().blocks_used) == (False, 0)


def _last_logit(model: PreTrainedModel, tokens: list[int], token: int) -> float:
    return float(reference_logits(model, tokens)[-1, token])

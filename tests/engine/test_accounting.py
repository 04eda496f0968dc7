"""What a wide request costs the pool: blocks, computed prompt tokens and prefix reads, as the metrics say them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.engine.asking import complete, counts, texts
from tests.engine.conftest import engine
from tests.fakes import tiny_chat
from tests.real.metrics import metric
from tests.real.processes import Server

BLOCK, CHOICES, PROMPT, NEW = 16, 32, 509, 29


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, engine_logs: Path) -> Iterator[Server]:
    """An engine whose counts nobody else has moved."""
    model = tiny_chat.save(tmp_path_factory.mktemp("accounting"), 1024)
    options = ("--max-sequences", str(CHOICES), "--num-blocks", "512", "--no-prefix-cache")
    with engine(model, *options, log=engine_logs / "accounting.log") as running:
        yield running


async def test_a_prompt_is_computed_once_and_held_once(fresh: Server) -> None:
    def counted(name: str, **labels: str) -> float:
        return metric(fresh.url, f"nproxy_engine_{name}", **labels)

    prompt = [(number * 37) % 250 + 5 for number in range(PROMPT)]
    async with httpx.AsyncClient(base_url=fresh.url, timeout=60.0, trust_env=False) as client:
        answered = await complete(client, prompt=prompt, n=CHOICES, max_tokens=NEW, seed=1, ignore_eos=True)
    assert len(texts(answered)) == CHOICES
    assert counts(answered["usage"]) == (PROMPT, CHOICES * NEW)

    assert counted("tokens_total", type="prompt") == PROMPT  # once, not n times
    assert counted("tokens_total", type="completion") == CHOICES * NEW
    assert counted("forks_total") >= CHOICES - 1
    assert [counted("preemptions_total", reason=reason) for reason in ("blocks", "fairness")] == [0, 0]

    per_choice = -(-(PROMPT % BLOCK + NEW) // BLOCK)
    assert counted("blocks_peak") <= PROMPT // BLOCK + CHOICES * per_choice + 1
    assert counted("blocks_peak") < CHOICES * (PROMPT // BLOCK)  # what holding the prompt per choice would take
    assert counted("blocks", state="used") == 0
    assert counted("blocks_shared") == 0

    prefix, read, unshared = (
        counted(f"{name}_total") for name in ("prefix_kv_read_bytes", "kv_read_bytes", "kv_unshared_bytes")
    )
    assert 0 < prefix <= read
    assert read < unshared / 5  # 32 choices over a prompt eight times as long as their answers
    assert counted("step_seconds_count") >= NEW

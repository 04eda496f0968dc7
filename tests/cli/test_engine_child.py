"""The engine's supervision, with a real child process that behaves like an engine, or does not."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args

import aiohttp
import psutil
import pytest
from pydantic import ValidationError

from engine.config import EngineConfig
from engine.kv_spans import FIXED_SPAN as batch_span
from engine.options import argument_parser as engine_arguments
from engine.options import engine_config
from engine.text.parsers.families import REASONING_FAMILIES, TOOL_FAMILIES
from nproxy.cli import engine_child
from nproxy.cli.engine_child import EngineFailed, command, private_socket, supervised
from nproxy.config import Engine
from nproxy.config.engine import DEFAULT_BLOCK, DEFAULT_SEQUENCES, FIXED_SPAN, ReasoningParser, ToolParser
from nproxy.models import LocalModel
from nproxy.workers import backoff

FAKE = Path(__file__).parents[1] / "fakes" / "engine_process.py"


@pytest.fixture
def socket() -> Iterator[Path]:
    with private_socket() as path:
        yield path


@pytest.fixture
def lives(tmp_path: Path) -> Path:
    """Where the child writes the process ids of its lives."""
    return tmp_path / "lives"


def argv(socket: Path, lives: Path, behaviour: str = "good") -> list[str]:
    return [sys.executable, str(FAKE), "--uds", str(socket), "--lives", str(lives), "--behaviour", behaviour]


def ids(lives: Path) -> list[int]:
    return [int(line) for line in lives.read_text().split()]


def gone(number: int) -> bool:
    """Whether a process has ended (one that nobody has waited for yet counts as ended)."""
    try:
        return bool(psutil.Process(number).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_the_socket_lies_in_a_folder_of_its_own_that_goes_again() -> None:
    with private_socket() as path:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert len(os.fsencode(path)) < 100
    assert not path.parent.exists()


def test_a_deep_temporary_folder_does_not_make_the_socket_path_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with private_socket() as path:
        assert len(os.fsencode(path)) < 100


def test_the_command_leaves_unset_options_to_the_engine() -> None:
    model = LocalModel("org/name", Path("/models/name"))
    words = command(Engine(max_model_len=512), model, Path("/s"), "info")
    assert words == [
        *(sys.executable, "-P", "-m", "engine", "/models/name", "--uds", "/s", "--served-model-name", "org/name"),
        *("--dtype", "auto", "--device", "auto", "--kernels", "auto", "--max-model-len", "512"),
        *("--tool-parser", "auto", "--reasoning-parser", "auto"),
        *("--stall-seconds", "60", "--log-level", "warning", "--exit-with-stdin"),
    ]


def test_every_setting_reaches_the_engine() -> None:
    settings = Engine(
        model="unused",
        dtype="float32",
        quantization="int8",
        device="cpu",
        kernels="torch",
        cuda_graphs=False,
        deterministic=True,
        max_model_len=512,
        max_sequences=8,
        max_batch_tokens=128,
        max_queue=0,
        block_size=32,
        kv_fraction=0.5,
        prefix_cache=False,
        max_logprobs=5,
        max_responses=6,
        max_response_bytes=700,
        tool_parser="hermes",
        reasoning_parser="none",
        pooling="mean",
        adapters={"tuned": "/models/tuned", "other": "/models/a=b"},
        seed=-7,
        stall_seconds=2,
    )
    words = command(settings, LocalModel("m", Path(__file__).parent), Path("/s"), "info")
    understood = engine_config(engine_arguments().parse_args(words[4:]))
    assert understood == EngineConfig(
        model=str(Path(__file__).parent),
        dtype="float32",
        quantization="int8",
        device="cpu",
        kernels="torch",
        cuda_graphs=False,
        deterministic=True,
        served_model_name="m",
        block_size=32,
        kv_fraction=0.5,
        max_model_len=512,
        max_batch_tokens=128,
        max_sequences=8,
        max_queue=0,
        prefix_cache=False,
        max_logprobs=5,
        max_responses=6,
        max_response_bytes=700,
        tool_parser="hermes",
        reasoning_parser="none",
        pooling="mean",
        adapters=(("tuned", "/models/tuned"), ("other", "/models/a=b")),
        seed=-7,
    )
    assert {field.name for field in fields(EngineConfig)} - {"share_gate"} == {*understood_names()}


def understood_names() -> set[str]:
    """The engine's settings that the gateway's configuration has a key for, and the id, which is the model's."""
    return {*Engine.model_fields, "served_model_name"} - {"stall_seconds"}


def test_the_parsers_named_are_those_that_the_engine_has() -> None:
    assert get_args(ToolParser) == ("auto", "none", *TOOL_FAMILIES)
    assert get_args(ReasoningParser) == ("auto", "none", *REASONING_FAMILIES)


def test_the_defaults_that_the_settings_are_checked_by_are_the_engines() -> None:
    engine = EngineConfig(model="m")
    assert (engine.max_sequences, engine.block_size) == (DEFAULT_SEQUENCES, DEFAULT_BLOCK)
    assert batch_span == FIXED_SPAN


@pytest.mark.parametrize("sizes", [{}, {"max_sequences": 240, "block_size": 32}, {"max_sequences": 1}])
def test_steps_are_too_small_in_the_settings_where_they_are_for_the_engine(sizes: dict[str, int]) -> None:
    least = EngineConfig(model="m", **sizes).least_batch_tokens  # type: ignore[arg-type]
    assert Engine.model_validate({"max_batch_tokens": least, **sizes})
    with pytest.raises(ValidationError):
        Engine.model_validate({"max_batch_tokens": least - 1, **sizes})


def test_what_the_settings_call_the_engines_default_is_it() -> None:
    source = Path(inspect.getfile(Engine)).read_text(encoding="utf-8")
    said = dict(re.findall(r'(?m)^    (\w+): .+ \| None = None\n    """[^"]*null: (\d+)(?: \([^)]*\))?\."""', source))
    assert said.keys() >= {"max_sequences", "max_queue", "block_size", "max_logprobs", "max_responses"}
    own = EngineConfig(model="m")
    assert {name: int(number) for name, number in said.items()} == {name: getattr(own, name) for name in said}


async def test_the_child_lives_as_long_as_the_body(socket: Path, lives: Path) -> None:
    ready = asyncio.Event()
    async with supervised(argv(socket, lives), socket, lambda seconds: ready.set()):
        await ready.wait()
        (child,) = ids(lives)
        assert not gone(child)
    assert gone(child)


async def test_the_child_leads_a_session_of_its_own(socket: Path, lives: Path) -> None:
    """Ctrl-C on a terminal must reach the gateway alone."""
    ready = asyncio.Event()
    async with supervised(argv(socket, lives), socket, lambda seconds: ready.set()):
        await ready.wait()
        assert os.getsid(ids(lives)[0]) != os.getsid(0)


async def test_a_child_that_dies_is_started_again(
    socket: Path, lives: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.01)
    ready: asyncio.Queue[float] = asyncio.Queue()
    restarts: list[None] = []
    async with supervised(argv(socket, lives), socket, ready.put_nowait, lambda: restarts.append(None)):
        for life in range(3):
            await ready.get()
            assert len(ids(lives)) == life + 1
            assert len(restarts) == life
            os.kill(ids(lives)[-1], signal.SIGKILL)
        await ready.get()
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"engine was killed by SIGKILL; restarting it in {pause:.1f} s" for pause in (0.01, 0.02, 0.04)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor for which all times are short."""
    for name, seconds in {
        "STOP_SECONDS": 0.5,
        "HEALTH_SECONDS": 0.05,
        "HEALTH_LIMIT": 0.5,
    }.items():
        monkeypatch.setattr(engine_child, name, seconds)
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.01)


@pytest.mark.usefixtures("impatient")
async def test_a_child_that_says_it_is_ill_is_started_again(
    socket: Path, lives: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ready: asyncio.Queue[float] = asyncio.Queue()
    async with supervised(argv(socket, lives, "ill"), socket, ready.put_nowait):
        await ready.get()
        await ready.get()
        first, second = ids(lives)
        assert gone(first)
        assert not gone(second)
        words = ("unwell" * 100)[:200]
        told = [record.getMessage() for record in caplog.records]
        assert told == [
            *(f"engine failed a health check ({number} of 3): 503 {words}" for number in (1, 2, 3)),
            "engine hangs; restarting it in 0.0 s",
        ]


@pytest.mark.usefixtures("impatient")
async def test_a_child_that_does_not_answer_is_started_again(socket: Path, lives: Path) -> None:
    ready: asyncio.Queue[float] = asyncio.Queue()
    async with supervised(argv(socket, lives), socket, ready.put_nowait):
        await ready.get()
        os.kill(ids(lives)[0], signal.SIGSTOP)
        await ready.get()
        first, second = ids(lives)
        assert gone(first)
        assert not gone(second)


@pytest.mark.usefixtures("impatient")
async def test_a_child_that_recovers_is_left_alone(
    socket: Path, lives: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_child, "HEALTH_FAILURES", 4)
    unwell = asyncio.Event()
    well = asyncio.Event()
    look = engine_child._illness

    async def noted(session: aiohttp.ClientSession) -> str | None:
        illness = await look(session)
        (well if illness is None else unwell).set()
        return illness

    monkeypatch.setattr(engine_child, "_illness", noted)
    ready = asyncio.Event()
    async with supervised(argv(socket, lives), socket, lambda seconds: ready.set()):
        await ready.wait()
        (child,) = ids(lives)
        for _ in range(2):
            os.kill(child, signal.SIGSTOP)
            unwell.clear()
            await unwell.wait()
            os.kill(child, signal.SIGCONT)
            well.clear()
            await well.wait()
        assert ids(lives) == [child]
        assert "engine failed a health check (1 of 4): no answer within 0.5 s" in caplog.text


@pytest.mark.model
@pytest.mark.usefixtures("impatient")
async def test_an_engine_whose_core_hangs_is_started_again(
    socket: Path, default_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = command(Engine(stall_seconds=2), LocalModel("m", default_model), socket, "info")
    ready: asyncio.Queue[float] = asyncio.Queue()
    async with supervised(words, socket, ready.put_nowait):
        await ready.get()
        server = next(child for child in psutil.Process().children() if str(socket) in child.cmdline())
        (core,) = server.children()
        core.suspend()
        body = {"model": "m", "prompt": "The sky is", "max_tokens": 4}
        connector = aiohttp.UnixConnector(str(socket))
        async with aiohttp.ClientSession("http://engine", connector=connector) as session:
            async with session.post("/v1/completions", json=body) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (503, "engine_unavailable")
            await ready.get()
            async with session.post("/v1/completions", json=body) as answer:
                assert answer.status == 200
        assert gone(server.pid)
        assert gone(core.pid)
        assert "engine hangs; restarting it" in caplog.text


async def test_pauses_grow_to_a_limit_and_start_anew_after_a_long_life(
    socket: Path, lives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(backoff, "LONGEST_PAUSE", 0.03)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    ready: asyncio.Queue[float] = asyncio.Queue()
    async with supervised(argv(socket, lives), socket, ready.put_nowait):
        for _ in range(4):
            await ready.get()
            os.kill(ids(lives)[-1], signal.SIGKILL)
        await ready.get()
        monkeypatch.setattr(backoff, "STEADY_SECONDS", 0.0)
        os.kill(ids(lives)[-1], signal.SIGKILL)
        await ready.get()
    assert pauses == [0.01, 0.02, 0.03, 0.03, 0.01]


async def test_a_child_that_never_was_ready_ends_the_body_with_its_error(socket: Path, lives: Path) -> None:
    with pytest.raises(EngineFailed, match="the engine ended with 1 before it was ready"):
        async with supervised(argv(socket, lives, "fail-first"), socket, lambda seconds: None):
            await asyncio.Event().wait()
    assert len(ids(lives)) == 1


async def test_an_error_of_the_body_comes_out_as_it_is_and_ends_the_child(socket: Path, lives: Path) -> None:
    ready = asyncio.Event()
    with pytest.raises(OSError, match="in use"):
        async with supervised(argv(socket, lives), socket, lambda seconds: ready.set()):
            await ready.wait()
            raise OSError("in use")
    assert gone(ids(lives)[0])


async def test_a_deaf_child_is_killed(socket: Path, lives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_child, "STOP_SECONDS", 0.2)
    ready = asyncio.Event()
    async with supervised(argv(socket, lives, "deaf"), socket, lambda seconds: ready.set()):
        await ready.wait()
    assert gone(ids(lives)[0])


async def test_what_the_child_started_ends_with_it(socket: Path, lives: Path) -> None:
    ready = asyncio.Event()
    async with supervised(argv(socket, lives, "parent"), socket, lambda seconds: ready.set()):
        await ready.wait()
    await _until_gone(*ids(lives))


GATEWAY = """
import asyncio, sys
from pathlib import Path
from nproxy.cli.engine_child import supervised

async def main():
    async with supervised(sys.argv[2:], Path(sys.argv[1]), lambda seconds: print("ready", flush=True)):
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_the_child_ends_when_its_supervisor_is_killed(socket: Path, lives: Path) -> None:
    words = [sys.executable, "-c", GATEWAY, str(socket), *argv(socket, lives)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "ready\n"
        supervisor.kill()
    await _until_gone(*ids(lives))


async def _until_gone(*numbers: int) -> None:
    async with asyncio.timeout(5):
        while not all(map(gone, numbers)):
            await asyncio.sleep(0.01)

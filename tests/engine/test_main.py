"""How the server process begins and ends: wrong use, loading, SIGTERM, the end of its input, a dead core."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import psutil
import pytest

from engine import __main__
from engine.__main__ import main
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.server import process
from engine.server.serving import Serving
from nproxy.openai.errors import ApiError
from tests.clients import lines_of
from tests.engine.asking import Folded, answer, chat, folded, post
from tests.engine.conftest import MODEL
from tests.fakes import tiny_chat
from tests.real.metrics import wait_for
from tests.real.processes import ROOT, ended

CHAT = "/v1/chat/completions"
ENDLESS = 30_000
"""Tokens of an answer that nobody sees the end of."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{folder}/none.gguf"], "no such file or folder"),
        (["{folder}/note.txt"], "neither a folder nor a .gguf file"),
        (["{folder}/empty.gguf"], "no GGUF file"),
        (["{folder}/cut.gguf"], "no GGUF file"),
        (["{folder}"], "no tokenizer.json"),
        (["{folder}", "--block-size", "0"], "block_size must be at least 1"),
        (["{folder}", "--kv-fraction", "2"], "kv_fraction must be between 0 and 1"),
        (["{folder}", "--kv-fraction", "0.5", "--num-blocks", "9"], "not allowed with"),
        (["{folder}", "--dtype", "int3"], "invalid choice"),
        (["{folder}", "--stall-seconds", "0"], "must be a number of seconds above 0, not 0"),
        (["{folder}", "--stall-seconds", "soon"], "must be a number of seconds above 0, not soon"),
        (["{folder}", "--port", "65536"], "must be a port from 0 to 65535, not 65536"),
        (["{folder}", "--port", "http"], "must be a port from 0 to 65535, not http"),
        (["{folder}", "--lora", "name"], "must be NAME=PATH, not name"),
        (["{folder}", "--max-logprobs", "-1"], "max_logprobs must not be negative"),
        (["{folder}", "--register", "http://a/"], "--register and --advertise must be used together"),
        (["{folder}", "--register", "http://u:p@a/", "--advertise", "http://b/"], "contains no credentials"),
        (["{folder}", "--register", "a:9000", "--advertise", "http://b/"], "begins with http:// or https://"),
        (["{folder}", "--register-token", "plain"], "for an environment variable (in quotes), or file:PATH"),
        (["{folder}", "--register-token", "file:/nowhere"], "there is no valid token in file:/nowhere"),
        (["{folder}", "--register-token", "file:~nobody-here/x"], "there is no valid token in file:~nobody-here/x"),
        ([], "required: MODEL"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # which a process of its own would set for itself
    (tmp_path / "note.txt").write_text("hello")
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    try:
        code = main([word.format(folder=tmp_path) for word in words])
    except SystemExit as ended:  # as argparse ends
        assert isinstance(ended.code, int)
        code = ended.code
    assert code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


async def test_a_second_signal_ends_what_the_first_one_lets_end() -> None:
    ended: list[ApiError] = []
    served = SimpleNamespace(draining=False, ready=True, router=SimpleNamespace(end=ended.append))
    departure = process._Departure(cast(Serving, served))
    departure.signalled()
    assert (departure.begun.is_set(), ended) == (True, [])
    departure.signalled()
    ((status, code),) = [(error.status, error.code) for error in ended]
    assert (served.draining, status, code) == (True, 503, "engine_unavailable")


async def test_who_is_ended_while_the_model_loads_has_nothing_to_end() -> None:
    served = SimpleNamespace(draining=False, ready=False)
    departure = process._Departure(cast(Serving, served))
    departure.at_once()
    assert departure.begun.is_set() and served.draining


@pytest.mark.parametrize(("file", "name"), [("my.model.gguf", "my.model"), ("a folder.v2/", "a folder.v2")])
def test_a_model_is_called_as_its_file_or_its_folder(tmp_path: Path, file: str, name: str) -> None:
    path = tmp_path / file
    path.mkdir() if file.endswith("/") else path.touch()
    assert __main__._name(EngineConfig(str(path))) == name
    assert __main__._name(EngineConfig(str(path), served_model_name="mine", adapters=((name, "folder"),))) == "mine"
    with pytest.raises(ConfigError, match=f"every adapter needs a unique name: '{name}' is the model's"):
        __main__._name(EngineConfig(str(path), adapters=((name, "folder"),)))


@pytest.mark.parametrize(("words", "said"), [(["nowhere.gguf"], "no such file or folder"), ([], "required: MODEL")])
def test_wrong_use_of_the_command(words: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine", *words], capture_output=True, text=True, timeout=30, cwd=ROOT
    )
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


INTERRUPTED = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.argv = ["engine", *sys.argv[1:]]
runpy.run_module("engine", run_name="__main__", alter_sys=True)
"""


def test_ctrl_c_while_it_starts_ends_it_and_its_core_without_a_traceback(tiny: Path, tmp_path: Path) -> None:
    """The core process has just begun, and the server's own modules are being imported."""
    argv = [sys.executable, "-c", INTERRUPTED, str(tiny), "--uds", str(tmp_path / "engine.sock")]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as server:
        try:
            parent = psutil.Process(server.pid)
            wait_for(lambda: bool(parent.children()), seconds=30, what="a core")
            (core,) = parent.children()
            server.send_signal(signal.SIGINT)
            _, said = server.communicate(timeout=30)
        finally:
            server.kill()
    assert (server.returncode, "Traceback" in said) == (0, False)
    wait_for(lambda: ended(core), seconds=10, what="its end")


@pytest.mark.model
def test_weights_that_are_cut_short_are_one_line(default_model: Path, tmp_path: Path) -> None:
    # The head of the file is whole, so that the server starts, and the core is the one to find out.
    cut = tmp_path / "cut.gguf"
    with default_model.open("rb") as whole:
        cut.write_bytes(whole.read(5_000_000))
    argv = [sys.executable, "-m", "engine", str(cut), "--uds", str(tmp_path / "engine.sock")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.count("truncated") == 1
    assert "Traceback" not in done.stderr


def test_a_setting_that_does_not_fit_the_model_is_one_line_and_exit_2(tiny: Path, tmp_path: Path) -> None:
    # Only the core, which loads the model, finds out.
    argv = [sys.executable, "-m", "engine", str(tiny), "--uds", str(tmp_path / "engine.sock")]
    argv += ["--max-model-len", str(9 * ENDLESS)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 2
    assert f"max_model_len is {9 * ENDLESS}; the model supports" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@dataclass
class Life:
    """A started engine on a Unix socket: its process, with a standard input that stays open, and its log."""

    process: subprocess.Popen[bytes]
    socket: Path
    log: Path

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket), verify=False)  # no certificates are read for each
        async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=60.0) as opened:
            yield opened

    async def health(self) -> httpx.Response | None:
        """What /health says; None while nobody listens."""
        try:
            async with self.client() as client:
                return await client.get("/health")
        except httpx.TransportError:
            return None

    async def until_ready(self) -> None:
        while (answer := await self.health()) is None or answer.status_code != 200:
            assert self.process.poll() is None, self.log.read_text()
            await asyncio.sleep(0.05)  # another process's state: there is no event to wait on

    async def until_running(self, sequences: int) -> None:
        async with self.client() as client:
            while f'{{state="running"}} {sequences}.0' not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.05)  # another process's state again

    async def exit_code(self, seconds: float) -> int:
        return await asyncio.to_thread(self.process.wait, seconds)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is soon there, and goes on for as long as it is let."""
    return tiny_chat.save(tmp_path_factory.mktemp("tiny"), 2 * ENDLESS)


@contextmanager
def started(model: Path, folder: Path) -> Iterator[Life]:
    socket, log = folder / "engine.sock", folder / "engine.log"
    argv = [sys.executable, "-m", "engine", str(model), "--uds", str(socket), "--served-model-name", MODEL]
    argv += ["--num-blocks", str(3 * ENDLESS // 16), "--exit-with-stdin"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=out, cwd=ROOT, env=env)
    try:
        yield Life(process, socket, log)
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


async def begun(response: httpx.Response) -> tuple[AsyncIterator[str], list[str]]:
    """A stream's lines, once the first text is there."""
    lines = lines_of(response)
    seen: list[str] = []
    async for line in lines:
        seen.append(line)
        if '"content":"' in line and '"content":""' not in line:
            break
    return lines, seen


async def rest(lines: AsyncIterator[str], seen: list[str]) -> tuple[Folded, dict[str, Any] | None]:
    """The stream to its end, and the error that ended it, if one did."""
    whole = folded(seen + [line async for line in lines])
    return whole, whole.chunks[-1].get("error")


def long_chat(tokens: int) -> dict[str, Any]:
    return chat(n=2, max_tokens=tokens, stream=True, ignore_eos=True)


async def test_it_refuses_while_loading_and_L5_finishes_on_sigterm(tiny: Path, tmp_path: Path) -> None:
    with started(tiny, tmp_path) as life:
        while (first := await life.health()) is None:
            await asyncio.sleep(0.02)
        assert first.status_code == 503
        assert first.json()["error"]["code"] == "engine_unavailable"
        assert first.headers["retry-after"]
        await life.until_ready()
        # More than the socket holds: it does not end before it is read.
        body = long_chat(60) | {"logprobs": True, "top_logprobs": 20}
        async with life.client() as client, client.stream("POST", CHAT, json=body) as live:
            lines, seen = await begun(live)
            life.process.send_signal(signal.SIGTERM)
            async with life.client() as late:
                while (refused := await late.post(CHAT, json=chat())).status_code == 200:
                    pass  # the signal has not been seen yet
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
            whole, error = await rest(lines, seen)
        assert (error, whole.done) == (None, True)
        assert whole.reasons == {0: ["length"], 1: ["length"]}
        assert await life.exit_code(20.0) == 0
        assert not life.socket.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_L5_a_signal_to_all_processes_lets_streams_end(tiny: Path, tmp_path: Path, number: int) -> None:
    with started(tiny, tmp_path) as life:
        await life.until_ready()
        server = psutil.Process(life.process.pid)
        async with life.client() as client:
            await answer(client, CHAT, chat(max_tokens=1, response_format={"type": "json_object"}))
            children = server.children()
            assert len(children) == 2  # the core, and the process that tries grammars
            async with client.stream("POST", CHAT, json=long_chat(60)) as live:
                lines, seen = await begun(live)
                for each in (*children, server):  # as systemd does, and a terminal with Ctrl-C
                    each.send_signal(number)
                whole, error = await rest(lines, seen)
        assert (error, whole.done) == (None, True)
        assert await life.exit_code(20.0) == 0
        await asyncio.to_thread(wait_for, lambda: all(map(ended, children)), seconds=20.0, what="no orphan")


async def test_it_ends_with_its_standard_input(tiny: Path, tmp_path: Path) -> None:
    with started(tiny, tmp_path) as life:
        await life.until_ready()
        children = psutil.Process(life.process.pid).children(recursive=True)
        assert children
        async with life.client() as client, client.stream("POST", CHAT, json=long_chat(ENDLESS)) as live:
            lines, seen = await begun(live)
            assert life.process.stdin is not None
            life.process.stdin.close()
            whole, error = await rest(lines, seen)
        assert error is not None
        assert not whole.done
        assert await life.exit_code(20.0) == 0
        await asyncio.to_thread(wait_for, lambda: all(map(ended, children)), seconds=20.0, what="no orphan")


async def test_a_dead_core_fails_its_requests_and_ends_the_server(tiny: Path, tmp_path: Path) -> None:
    body = chat(max_tokens=ENDLESS, ignore_eos=True)
    with started(tiny, tmp_path) as life:
        await life.until_ready()
        async with life.client() as client, client.stream("POST", CHAT, json=long_chat(ENDLESS)) as live:
            lines, seen = await begun(live)
            async with asyncio.TaskGroup() as group:
                whole_answer = group.create_task(client.post(CHAT, json=body))
                await life.until_running(3)
                for core in psutil.Process(life.process.pid).children():
                    core.kill()
            whole, error = await rest(lines, seen)
        assert error is not None
        assert error["code"] == "engine_stopped"
        assert not whole.done
        assert whole_answer.result().status_code == 503
        assert whole_answer.result().json()["error"]["code"] == "engine_stopped"
        assert await life.exit_code(20.0) == 1
        assert "ended by signal 9" in life.log.read_text()


@pytest.mark.parametrize("loading", [True, False])
async def test_no_core_outlives_a_server_that_is_killed(tiny: Path, tmp_path: Path, loading: bool) -> None:
    """While the model loads, or in the middle of an answer that nobody reads."""
    with started(tiny, tmp_path) as life, socket.socket(socket.AF_UNIX) as reader:
        while (answer := await life.health()) is None:
            await asyncio.sleep(0.02)
        while not (cores := psutil.Process(life.process.pid).children()):
            await asyncio.sleep(0.01)
        (core,) = cores
        if loading:
            assert answer.status_code == 503
        else:
            await life.until_ready()
            reader.connect(str(life.socket))
            reader.sendall(post(CHAT, long_chat(ENDLESS)))
            await life.until_running(2)
        life.process.kill()
        await asyncio.to_thread(wait_for, lambda: ended(core), seconds=20.0, what="no orphan")

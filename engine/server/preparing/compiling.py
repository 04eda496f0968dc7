"""Grammars on their way to the core: each text is first tried in a process of its own.

A client's grammar can make the compiler recurse until its stack is full, or compute without end, and neither can be
stopped inside a process. So a grammar is tried in a process that does nothing else. If that process dies of it, or of
too much processor time, that is the client's error, and a new process is started for the next grammar. How long a trial
lasts in wall-clock time depends more on the machine than on the grammar, so the client may then retry.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace

from engine.child_environment import child_environment
from engine.errors import GrammarError
from engine.grammar import MOST_BYTES
from engine.messages import Ready
from engine.server.asking.structure import Structure, grammar_of, text_rule
from engine.server.preparing.grammar_trial import TOO_LONG
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import ApiError, engine_unavailable, invalid_request, overloaded

_TRIAL_SECONDS = 5.0  # of processor time; a schema of usual size takes some milliseconds
_WALL_SECONDS = 15.0  # the same on a busy machine
_TOKEN_SECONDS = 0.25  # in a step, it would delay all sequences' next tokens by so much
_MEMORY = 8 << 30  # bytes of address space, few of which are ever used
_START_SECONDS = 60.0
_KEPT = 64
_MOST_WAITING = 64  # new grammars; those that have passed before never wait
_RETRY_SECONDS = 5
_DYING_SECONDS = 5.0  # from its last output to its end, on a busy machine
_LINE = 16 << 20  # a text may grow when it is turned into Lark, or written as JSON


class _Died(Exception):
    """The process ended over a grammar; the message is what that says about the grammar."""


class _Late(Exception):
    """The process had to be ended, or was, and it is unknown whether the grammar or the machine was at fault."""


@dataclass(slots=True, eq=False)
class _Trial:
    """A new grammar that is tried for all requests that have it. waiters: how many of them wait for the result."""

    task: asyncio.Task[str]
    waiters: int = 0


class Compiling:
    """The process that tries grammars, started with the first one. Owned by one event loop.

    trial_seconds, token_seconds: the processor time that a grammar, and one token of it, may take. wall_seconds: the
    wall-clock time after which the server gives up a trial. memory: the bytes of address space that the process may
    take.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        ready: Ready,
        trial_seconds: float = _TRIAL_SECONDS,
        token_seconds: float = _TOKEN_SECONDS,
        wall_seconds: float = _WALL_SECONDS,
        memory: int = _MEMORY,
    ) -> None:
        self._tokenizer = tokenizer
        self._ready = ready
        self._trial_seconds = trial_seconds
        self._token_seconds = token_seconds
        self._wall_seconds = wall_seconds
        self._memory = memory
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._trials: dict[str, _Trial] = {}  # of new grammars, by text, until nobody waits for the result
        self._passed: OrderedDict[str, str] = OrderedDict()

    async def check(self, structure: Structure) -> Structure:
        """Return the structure with the grammar that the core is to have.

        Raises ApiError 400, naming the field, for a grammar that it could not follow; 429 and 503 if the client may
        retry later.
        """
        try:
            return replace(structure, grammar=await self._passed_text(structure.grammar))
        except GrammarError as error:
            raise invalid_request(f"Invalid '{structure.field}': {error}.", param=structure.field) from error

    async def _passed_text(self, grammar: str) -> str:
        if len(grammar.encode()) > MOST_BYTES:
            raise GrammarError(f"it is longer than {MOST_BYTES} bytes")
        if (text := self._passed.get(grammar)) is not None:
            self._passed.move_to_end(grammar)
            return text
        trial = self._trials.get(grammar)
        if trial is None:
            if len(self._trials) >= _MOST_WAITING:
                raise overloaded("Too many new grammars are waiting to be compiled.", retry_after=_RETRY_SECONDS)
            trial = self._trials[grammar] = _Trial(asyncio.create_task(self._tried(grammar)))
        trial.waiters += 1
        try:
            return await asyncio.shield(trial.task)
        finally:
            trial.waiters -= 1
            if not trial.waiters:
                trial.task.cancel()  # if it is not over: all who wanted it have left
                del self._trials[grammar]

    async def _tried(self, grammar: str) -> str:
        async with self._turn:
            try:
                text = await self._ask(await self._running(), grammar, self._wall_seconds)
            except _Died as error:
                raise GrammarError(str(error)) from error
            except _Late as error:
                raise engine_unavailable(
                    "The grammar could not be compiled now.", retry_after=_RETRY_SECONDS
                ) from error
        self._passed[grammar] = text
        if len(self._passed) > _KEPT:
            self._passed.popitem(last=False)
        return text

    def kill(self) -> None:
        """End the process without waiting for it."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def close(self) -> int | None:
        """End the process, if there is one, and return its code; the next grammar starts another."""
        self.kill()
        if self._process is None:
            return None
        process, self._process = self._process, None
        return await process.wait()

    async def _running(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        arguments = (sys.executable, "-P", "-m", "engine.server.preparing.grammar_trial")
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *arguments, stdin=PIPE, stdout=PIPE, env=child_environment(), limit=_LINE
            )
        except OSError as error:  # no more processes, files or memory
            raise _cannot_compile() from error
        compiler = {
            "tokenizer": self._tokenizer.backend.to_str(),
            "vocab_size": self._ready.vocab_size,
            "stop_tokens": sorted(self._ready.eos_tokens),
        }
        if process.stdin is not None:
            settings = {
                "compiler": compiler,
                "trial_seconds": self._trial_seconds,
                "token_seconds": self._token_seconds,
                "memory": self._memory,
            }
            process.stdin.write(json.dumps(settings).encode() + b"\n")
        try:  # first with a grammar that must pass, so that the start does not count against a client's
            await self._ask(process, grammar_of(text_rule("")), _START_SECONDS)
        except (_Died, _Late) as error:
            raise _cannot_compile() from error
        return process

    async def _ask(self, process: Process, grammar: str, seconds: float) -> str:
        """Return the process's text for a grammar; raise GrammarError with its reason, _Died or _Late."""
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the process has no pipes")
        try:
            async with asyncio.timeout(seconds):
                stdin.write(json.dumps(grammar).encode() + b"\n")
                await stdin.drain()
                line = await stdout.readline()
        except TimeoutError as error:
            await self.close()
            raise _Late from error
        except OSError:  # it died before it had read everything
            line = b""
        except BaseException:  # the clients disconnected; the answer must not be taken for that of the next grammar
            await self.close()
            raise
        if not line.endswith(b"\n"):
            # It has died, perhaps in the middle of a long answer. Killing it would collect its exit code before the
            # event loop does, which then has none.
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _DYING_SECONDS)
            died_of = -(await self.close() or 0)
            if died_of == signal.SIGKILL:
                raise _Late  # nobody here sent it: the system lacks memory, for whatever reason
            if died_of == TOO_LONG:
                raise _Died(f"it is too complex: compiling takes more than {self._trial_seconds:g} s of CPU time")
            raise _Died("it is too complex to be compiled")
        answer: dict[str, str] = json.loads(line)
        if (why := answer.get("error")) is not None:
            raise GrammarError(why)
        return answer["grammar"]


def _cannot_compile() -> ApiError:
    return engine_unavailable("The engine cannot compile grammars now.", retry_after=_RETRY_SECONDS)

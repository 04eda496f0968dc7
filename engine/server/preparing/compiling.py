"""Grammars on their way to the core: each text is first tried in a process of its own.

What a client sends can make the compiler recurse until its stack is full, or compute until the end of days, and
neither can be stopped inside a process. So a grammar is tried where nothing else lives: it is the client's error
when that process dies of it or of too much processor time, and a new process is started for the next one. How long
a trial lasts by the clock says more of the machine than of the grammar: that is the client's to ask again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace

from engine.channel import child_environment
from engine.errors import GrammarError
from engine.grammar import MOST_BYTES
from engine.messages import Ready
from engine.server.asking.structure import Structure, grammar_of, text_rule
from engine.server.preparing.grammar_trial import TOO_LONG
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import engine_unavailable, invalid_request, overloaded

_TRIAL_SECONDS = 5.0  # of processor time; a schema of everyday size takes some milliseconds
_WALL_SECONDS = 15.0  # the same on a machine that does much else
_TOKEN_SECONDS = 0.25  # in a step, nobody's next token comes sooner
_MEMORY = 8 << 30  # bytes of addresses, of which few are ever used
_START_SECONDS = 60.0
_KEPT = 64
_MOST_WAITING = 8  # new grammars; those that have passed never wait
_RETRY_SECONDS = 5
_DYING_SECONDS = 5.0  # from its last word to its end, on a machine that does much else
_LINE = 16 << 20  # a text may grow when it is turned into Lark, or written as JSON


class _Died(Exception):
    """The process ended over a grammar: what that says of the grammar."""


class _Late(Exception):
    """The process had to be ended, and whose fault it is nobody knows."""


class Compiling:
    """The process that tries grammars, started with the first. Owned by one event loop.

    trial_seconds: what a grammar may take, and token_seconds: what one token of it may, in processor time;
    wall_seconds: after what the server gives a trial up. memory: what the process may take, in bytes of addresses.
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
        self._waiting = 0
        self._passed: OrderedDict[str, str] = OrderedDict()

    async def check(self, structure: Structure) -> Structure:
        """The same as the core is to have it.

        Raises ApiError 400, naming the field, for what it could not follow; 429 and 503 for what may come again later.
        """
        try:
            return replace(structure, grammar=await self._passed_text(structure.grammar))
        except GrammarError as error:
            raise invalid_request(f"Invalid '{structure.field}': {error}.", param=structure.field) from error

    async def _passed_text(self, grammar: str) -> str:
        if len(grammar.encode()) > MOST_BYTES:
            raise GrammarError(f"it is longer than {MOST_BYTES} bytes")
        if grammar not in self._passed:
            if self._waiting >= _MOST_WAITING:
                raise overloaded("Too many new grammars are waiting to be compiled.", retry_after=_RETRY_SECONDS)
            self._waiting += 1
            try:
                async with self._turn:
                    return await self._tried(grammar)
            finally:
                self._waiting -= 1
        self._passed.move_to_end(grammar)
        return self._passed[grammar]

    async def _tried(self, grammar: str) -> str:
        if (text := self._passed.get(grammar)) is None:  # it may have passed for somebody else meanwhile
            try:
                text = await self._ask(await self._running(), grammar, self._wall_seconds)
            except _Died as error:
                raise GrammarError(str(error)) from error
            except _Late as error:
                raise engine_unavailable(
                    "The grammar could not be compiled in time.", retry_after=_RETRY_SECONDS
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
        """End the process, if there is one, and give its code; the next grammar starts another."""
        self.kill()
        if self._process is None:
            return None
        process, self._process = self._process, None
        return await process.wait()

    async def _running(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        arguments = (sys.executable, "-P", "-m", "engine.server.preparing.grammar_trial")
        self._process = process = await asyncio.create_subprocess_exec(
            *arguments, stdin=PIPE, stdout=PIPE, env=child_environment(), limit=_LINE
        )
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
        try:  # with a grammar that must pass, so that no client's pays for the start
            await self._ask(process, grammar_of(text_rule("")), _START_SECONDS)
        except (_Died, _Late) as error:
            raise engine_unavailable("The engine cannot compile grammars now.", retry_after=_RETRY_SECONDS) from error
        return process

    async def _ask(self, process: Process, grammar: str, seconds: float) -> str:
        """The text that the process gives for a grammar; raises GrammarError with its reason, _Died or _Late."""
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
        except OSError:  # it died before it had read all
            line = b""
        except BaseException:  # the client left, and the answer must not be taken for the next one's
            await self.close()
            raise
        if not line:
            # It has died. To kill it would collect its code before the event loop does, which then knows none.
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _DYING_SECONDS)
            if -(await self.close() or 0) == TOO_LONG:
                raise _Died(f"it is too complex: compiling takes more than {self._trial_seconds:g} s of CPU time")
            raise _Died("it is too complex to be compiled")
        answer: dict[str, str] = json.loads(line)
        if (why := answer.get("error")) is not None:
            raise GrammarError(why)
        return answer["grammar"]

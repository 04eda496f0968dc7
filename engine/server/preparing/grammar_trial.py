"""Tries a grammar before the core gets it, in a process that may hang or crash because of it.

`python -m engine.server.preparing.grammar_trial`, started by compiling.py. It reads lines of JSON: first an object with
"compiler", the arguments of a Compiler, "trial_seconds" and "token_seconds", the processor time that a grammar and a
token may take, and "memory", the address space that this process may take, in bytes; then one grammar each. It answers
each grammar with `{"grammar"}`, the text that the core is to have, or with `{"error"}`. If a grammar takes longer, the
kernel ends the process with the signal TOO_LONG, because no other thread here runs while the library computes. The
process ends with its standard input.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.errors import GrammarError
from engine.grammar import Compiler, in_lark, reason

_STACK = 4 << 20  # far less than in the core, so that a stack overflow happens here
_TOKENS = 16

TOO_LONG = getattr(signal, "SIGPROF", 27)  # Windows has no such timer; there the server's own timeout alone decides


def main() -> None:
    """Answer until there are no more lines; a grammar that is being tried then is abandoned."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they may reach all processes; the server ends this one
        signal.signal(number, signal.SIG_IGN)
    _die_first()
    threading.stack_size(_STACK)
    thread = ThreadPoolExecutor(1)
    settings = json.loads(sys.stdin.buffer.readline())
    _bound(settings["memory"])
    compiler = thread.submit(lambda: Compiler(**settings["compiler"]))
    for line in sys.stdin.buffer:
        thread.submit(_answer, compiler, json.loads(line), settings["trial_seconds"], settings["token_seconds"])
    os._exit(0)


def _die_first() -> None:
    """Have the system end this process before all others if memory runs out: the core's is worth more, and larger."""
    with suppress(OSError):  # Linux only
        Path("/proc/self/oom_score_adj").write_text("1000")


def _bound(memory: int) -> None:
    with suppress(ImportError, ValueError, OSError):  # does not exist on Windows, and has no effect on macOS
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _answer(compiler: Future[Compiler], grammar: str, trial_seconds: float, token_seconds: float) -> None:
    try:
        made = compiler.result()  # outside of the limit: its start does not count against a grammar
        with _no_longer_than(trial_seconds):
            grammar = in_lark(grammar)
            _try(made, grammar, token_seconds)
        answer = {"grammar": grammar}
    except GrammarError as error:
        answer = {"error": str(error)}
    except BaseException:  # no memory, or a panic of the library: treated as a crash
        os._exit(1)
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Have this process ended if the body takes more processor time."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _try(compiler: Compiler, grammar: str, token_seconds: float) -> None:
    """Compile, and follow a few tokens; raise GrammarError."""
    compiled = compiler.compile(grammar)
    matcher, mask = compiled.matcher, compiled.mask
    drawing, ends = random.Random(0), sum([1 << token for token in compiler.stop_tokens])
    for _ in range(_TOKENS):
        if matcher.is_stopped():
            return
        began = time.thread_time()
        matcher.consume_token(_some(int.from_bytes(mask, "little"), ends, drawing))
        mask = compiled.next(matcher)
        if time.thread_time() - began > token_seconds:
            raise GrammarError("it is too complex: computing one token takes too long")
        if matcher.is_error():
            raise GrammarError(reason(matcher))


def _some(mask: int, ends: int, drawing: random.Random) -> int:
    """Return one of a mask's tokens, the first at or above a random place; a stop token only if there is no other."""
    mask = mask & ~ends or mask
    above = mask >> drawing.randrange(mask.bit_length()) if mask else 0
    place = mask.bit_length() - above.bit_length()
    return place + (above & -above).bit_length() - 1


if __name__ == "__main__":
    main()

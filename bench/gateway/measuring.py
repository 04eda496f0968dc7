"""Plays one case against one gateway, and measures what the gateway and the load use."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import psutil

from bench.gateway.accounting import cpu_seconds, family
from bench.gateway.cases import PACES, Case
from bench.gateway.figures import Round
from bench.gateway.peers import Running
from bench.gateway.programs import Count, Told, ask
from bench.steal import TRIES, stolen, undisturbed

WARM_SECONDS = 0.5
WARM_ANSWERS = 20
ANSWERS_SECONDS = 30.0
"""How long a case that counts answers may take."""


def play(case: Case, running: Running, load: Sequence[int], seconds: float) -> Round:
    """Warm up, then measure. load: the processes that serve the gateway; the client's CPU time is added to theirs.

    A gateway that has ended, or that never finishes, gives a round with an error.
    """
    try:
        return _play(case, running, load, seconds)
    except (RuntimeError, psutil.Error, subprocess.TimeoutExpired) as error:
        return Round(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, {"gone": 1}, str(error))


def _play(case: Case, running: Running, load: Sequence[int], seconds: float) -> Round:
    request = case.request(running.port, running.headers, running.path)
    warm = replace(case, answers=min(case.answers, WARM_ANSWERS))
    if (told := ask(warm, running.port, request, WARM_SECONDS)).errors:
        return _round(case, told, 0.0, 0.0, 1.0)
    gateway = family(running.pid) if running.pid is not None else []
    begun, spent, loaded = time.monotonic(), cpu_seconds(gateway), cpu_seconds(load)
    told = ask(case, running.port, request, ANSWERS_SECONDS if case.answers else seconds)
    spent, loaded = cpu_seconds(gateway) - spent, cpu_seconds(load) - loaded + told.cpu_seconds
    return _round(case, told, spent, loaded, time.monotonic() - begun)


def quietly(
    case: Case, running: Running, load: Sequence[int], seconds: float, stolen: Callable[[], float] = stolen
) -> Round:
    """Play a case; repeat it if the machine did not have all its processor time. Rounds with errors are kept at once.

    stolen: see steal.py.
    """
    tries = [partial(play, case, running, load, seconds)] * TRIES
    found, share = undisturbed(tries, stolen, lambda one: bool(one.errors))
    return replace(found, stolen=share)


def held_pace(case: Case, running: Running, load: Sequence[int]) -> int:
    """Return the fastest of PACES that this machine holds without a gateway."""
    for pace in PACES:
        told = play(replace(case, pace=pace), running, load, 1.0)
        if told.rate >= replace(case, pace=pace).wanted:
            return pace
    return PACES[-1]


def _round(case: Case, told: Told, spent: float, loaded: float, wall: float) -> Round:
    in_time, done = _counted(case, told.in_time), _counted(case, told.all)
    return Round(
        rate=in_time / told.seconds if told.seconds else 0.0,
        cpu_us=spent / done * 1e6 if done else 0.0,
        first_ms=told.first_us / 1000,
        last_first_ms=told.last_first_us / 1000,
        gateway_busy=spent / wall,
        load_busy=loaded / wall,
        done=done,
        errors=told.errors,
        complaint=told.complaint,
    )


def _counted(case: Case, count: Count) -> int:
    return count.chunks if case.stream else count.answers * case.n

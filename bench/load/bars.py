"""All load bars, by name, with the options of their two forms."""

from __future__ import annotations

from collections.abc import Mapping

from bench.load import chaos, idle, leave, overload, reload, soak, wide
from bench.load.bar import Bar

BARS: Mapping[str, Bar] = {
    "wide": Bar(
        "1,000 clients x n=8, 8,000 upstream streams, 5 minutes: every choice byte-exact, no errors, RSS <= 350 MiB",
        wide.run,
        long={"clients": 1000, "n": 8, "seconds": 300.0, "pace": 0.5, "tokens": 20},
        short={"clients": 20, "n": 8, "seconds": 1.0, "pace": 10.0, "tokens": 12},
    ),
    "idle": Bar(
        "10,000 connections that ask nothing: none is closed, RSS <= 16 KiB each, others are answered at once",
        idle.run,
        long={"idle": 10_000, "processes": 2, "workers": 2},
        short={"idle": 1000, "processes": 1, "workers": 1},
    ),
    "leave": Bar(
        "10,000 disconnects at random moments: 2 s later no upstream call is left; files, tasks and permits are back",
        leave.run,
        long={"leavers": 10_000, "clients": 100},
        short={"leavers": 60, "clients": 40},
    ),
    "soak": Bar(
        "100,000 requests of n=4 in 10 equal cycles: RSS grows by at most 1 MiB per 10,000 requests in the last 8",
        soak.run,
        long={"requests": 100_000, "cycles": 10, "clients": 32},
        short={"requests": 160, "cycles": 4, "clients": 16},
    ),
    "chaos": Bar(
        "5 % resets, 5 % 503, 2 % stalls, 1 % malformed, 10 % leavers, a worker killed every 20 s, 15 minutes: "
        "0 wrong bytes, 0 hangs, 99 % of the answers whole",
        chaos.run,
        long={"seconds": 900.0, "seconds_off": 300.0, "clients": 24, "workers": 2, "kill_every": 20.0, "tokens": 25},
        short={"seconds": 3.0, "seconds_off": 0.0, "clients": 8, "workers": 2, "kill_every": 1.5, "tokens": 5},
    ),
    "overload": Bar(
        "three times what fits: goodput stays at 90 % of the peak, refusals are answered in 20 ms",
        overload.run,
        long={"permits": 256, "n": 4, "seconds": 60.0, "pace": 10.0, "tokens": 20},
        short={"permits": 16, "n": 4, "seconds": 1.5, "pace": 20.0, "tokens": 4},
    ),
    "reload": Bar(
        "100 reloads and 10 rolling restarts under 200 streams: 0 failed",
        reload.run,
        long={"streams": 200, "reloads": 100, "restarts": 10, "interval": 1.0, "workers": 2, "tokens": 25},
        short={"streams": 20, "reloads": 5, "restarts": 1, "interval": 0.1, "workers": 2, "tokens": 4},
    ),
}

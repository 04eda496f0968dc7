"""`python -m nproxy.workers LISTENER CHANNEL`: a worker on two inherited file descriptors; the parent starts it."""

from __future__ import annotations

import logging
import signal
import socket
import sys

from nproxy.config import ConfigError
from nproxy.gateway import loop
from nproxy.workers.worker import NotForUs, work

log = logging.getLogger("nproxy.workers")


def main(listener: int, channel: int) -> int:
    """Run a worker on two sockets, by their file descriptors; return the exit status."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):  # the parent handles them, and tells the workers
        signal.signal(number, signal.SIG_IGN)
    try:
        with socket.socket(fileno=listener) as sock:
            loop.run(work(sock, socket.socket(fileno=channel)))
    except NotForUs:
        print("nproxy: the parent process has another version; restart nproxy completely", file=sys.stderr)  # noqa: T201 - no settings yet to log by
        return 1
    except ConfigError as error:  # a certificate that was valid when the settings were read
        for problem in error.problems:
            log.error("a worker cannot serve the settings: %s", problem)  # noqa: TRY400 - what is wrong is said in full
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))

"""A warning that anybody may use the servers."""

from __future__ import annotations

import logging

from nproxy.config import Config, loopback

log = logging.getLogger("nproxy.gateway")


def warn_of_an_open_port(config: Config) -> None:
    """Log it if other machines can reach the port and no key is required."""
    if config.auth is None and not loopback(config.listen.host):
        log.warning("no key is required: anybody who can reach the port can use the servers; `auth` sets keys")

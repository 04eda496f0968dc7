"""Settings: the YAML file, the environment and the command line, parsed into one frozen type."""

from nproxy.config.certificate import certificate_expiry
from nproxy.config.changes import needs_restart
from nproxy.config.engine import DEFAULT_MODEL, ENGINE_UPSTREAM, Engine
from nproxy.config.files import load_pair, why_unusable
from nproxy.config.keys import Key, digest_of, read_keys
from nproxy.config.loading import Reading, Source, from_message, load
from nproxy.config.replicas import DnsName, Replica
from nproxy.config.settings import (
    Admin,
    Auth,
    Config,
    Limits,
    Listen,
    NPolicy,
    Pages,
    Passthrough,
    Stream,
    Telemetry,
    Tls,
    loopback,
)
from nproxy.config.summary import summarise
from nproxy.config.tree import ConfigError, Origin, Problem, Tree
from nproxy.config.upstream import Breaker, Health, Retries, Timeouts, Upstream
from nproxy.config.values import HugePages, NativeUpTo
from nproxy.config.watching import Watch

__all__ = [
    "DEFAULT_MODEL",
    "ENGINE_UPSTREAM",
    "Admin",
    "Auth",
    "Breaker",
    "Config",
    "ConfigError",
    "DnsName",
    "Engine",
    "Health",
    "HugePages",
    "Key",
    "Limits",
    "Listen",
    "NPolicy",
    "NativeUpTo",
    "Origin",
    "Pages",
    "Passthrough",
    "Problem",
    "Reading",
    "Replica",
    "Retries",
    "Source",
    "Stream",
    "Telemetry",
    "Timeouts",
    "Tls",
    "Tree",
    "Upstream",
    "Watch",
    "certificate_expiry",
    "digest_of",
    "from_message",
    "load",
    "load_pair",
    "loopback",
    "needs_restart",
    "read_keys",
    "summarise",
    "why_unusable",
]

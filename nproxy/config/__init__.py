"""Settings: the YAML file, the environment and the command line, parsed into one frozen type."""

from nproxy.config.loading import load
from nproxy.config.settings import (
    DEFAULT_MODEL,
    ENGINE_UPSTREAM,
    Config,
    Engine,
    Limits,
    Listen,
    NPolicy,
    Passthrough,
    Retries,
    Stream,
    Telemetry,
    Timeouts,
    Upstream,
)
from nproxy.config.summary import summarise
from nproxy.config.tree import ConfigError, Origin, Problem, Tree
from nproxy.config.values import NativeUpTo, Replica

__all__ = [
    "DEFAULT_MODEL",
    "ENGINE_UPSTREAM",
    "Config",
    "ConfigError",
    "Engine",
    "Limits",
    "Listen",
    "NPolicy",
    "NativeUpTo",
    "Origin",
    "Passthrough",
    "Problem",
    "Replica",
    "Retries",
    "Stream",
    "Telemetry",
    "Timeouts",
    "Tree",
    "Upstream",
    "load",
    "summarise",
]

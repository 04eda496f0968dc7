"""The engine's errors, by who has to act on them. No torch, no asyncio."""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose; the text is one sentence for a person."""


class ConfigError(EngineError):
    """A setting is wrong, or two contradict each other: the operator must change it."""


class ModelError(EngineError):
    """The model's files are missing, damaged or of a kind that the engine cannot run."""


class GrammarError(EngineError):
    """A grammar cannot be compiled: the client must change it."""


class RequestError(EngineError, ValueError):
    """A request to the library asks for something impossible; `param` is the field at fault, None if it is no single
    field.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class CoreFailed(EngineError):
    """The core process ended, or could not start; all requests in it are lost."""


class CoreRefused(CoreFailed):
    """The core could not start because of a setting or the model's files: the operator must change them."""


class OutOfBlocks(EngineError):
    """A block was asked for and none is free: the scheduler counted wrong, or did not count."""

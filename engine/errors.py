"""What can go wrong in the engine, by whose fault it is. No torch, no asyncio."""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose; the text is one sentence for a person."""


class ConfigError(EngineError):
    """A setting is wrong, or two contradict each other: the operator's to mend."""


class ModelError(EngineError):
    """The model's files are missing, damaged or of a kind that the engine cannot run."""


class GrammarError(EngineError):
    """A grammar cannot be compiled: the client's to change."""


class RequestError(EngineError, ValueError):
    """A request to the library asks for what cannot be; `param` is the field at fault, where it is one's."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class CoreFailed(EngineError):
    """The core process ended, or could not start; everything it had in hand is lost."""


class OutOfBlocks(EngineError):
    """A block was asked for and none is free: the scheduler counted wrong, or did not count."""

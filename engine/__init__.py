"""nproxy's built-in engine: a server (`python -m engine`), and a library (`from engine import Engine`).

What the library needs, torch with it, is loaded when it is first asked for, not by `import engine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.errors import ConfigError, EngineError, ModelError, RequestError
    from engine.library import Answer, Choice, Delta, Engine, Usage

__all__ = [
    "Answer",
    "Choice",
    "ConfigError",
    "Delta",
    "Engine",
    "EngineError",
    "ModelError",
    "RequestError",
    "Usage",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'engine' has no attribute '{name}'")
    from engine import errors, library

    return getattr(errors if name.endswith("Error") else library, name)

"""Lessons about upstreams as plain data, by which a worker shares what it has learned with the others."""

from __future__ import annotations

from dataclasses import asdict
from typing import get_args

from pydantic import TypeAdapter, ValidationError

from nproxy.choices.lessons import Lesson
from nproxy.workers.messages import NotAMessage, Taught

_ADAPTERS: dict[str, TypeAdapter[Lesson]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(Lesson)}


def taught(upstream: str, model: str, lesson: Lesson) -> Taught:
    """Return a lesson as a message."""
    return Taught(upstream, model, (type(lesson).__name__, asdict(lesson)))


def lesson_of(message: Taught) -> Lesson:
    """Return the lesson in a message. Raises NotAMessage if this version of nproxy does not know it."""
    name, fields = message.lesson
    try:
        return _ADAPTERS[name].validate_python(fields)
    except (KeyError, ValidationError):
        raise NotAMessage from None

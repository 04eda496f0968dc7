"""Lessons about upstreams as plain data, so that what one worker learns the others need not."""

from __future__ import annotations

from dataclasses import asdict
from typing import get_args

from pydantic import TypeAdapter, ValidationError

from nproxy.choices.lessons import Lesson
from nproxy.workers.messages import NotAMessage, Taught

_ADAPTERS: dict[str, TypeAdapter[Lesson]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(Lesson)}


def taught(upstream: str, model: str, lesson: Lesson) -> Taught:
    return Taught(upstream, model, (type(lesson).__name__, asdict(lesson)))


def lesson_of(message: Taught) -> Lesson:
    """Raises NotAMessage for a lesson that this nproxy does not know."""
    name, fields = message.lesson
    try:
        return _ADAPTERS[name].validate_python(fields)
    except (KeyError, ValidationError):
        raise NotAMessage from None

"""Dataclasses that nothing may change, which only the type checker enforces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Make a dataclass with slots, equality and a hash by its fields. Only the type checker makes it immutable.

    With `frozen=True`, an object makes a call for each of its fields and so takes three times as long to create. This
    is for objects that are created with every request.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)

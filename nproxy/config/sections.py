"""What all sections of the settings have in common, also when some of their keys are wrong.

Pydantic gives no object if any key is wrong. But keys that are right may contradict each other, and the files that they
name may not be usable. So if the context of a validation has `CONFLICTS`, everything that is right is read: a key that
is wrong is left out of its section, and `NotRead` is raised when it is asked for. Thus no error is reported that only
follows from another. In a section with an unknown key, the keys that are absent are left out as well: one of them may
be what was meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

CONFLICTS = "conflicts"
"""The key of a validation's context for a list, to which conflicts are added instead of being raised."""

_NOT_READ = object()


class NotRead(AttributeError):
    """Somebody asks for a key whose value is wrong."""


class Settings(BaseModel):
    """A frozen part of the configuration; an unknown key is an error, never ignored."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,  # an input may be a secret
        validate_default=False,
    )

    if not TYPE_CHECKING:  # otherwise every attribute would exist

        def __getattr__(self, name: str) -> Any:
            if name in type(self).model_fields:
                raise NotRead(name)
            return super().__getattr__(name)

    @field_validator("*", mode="wrap")
    @classmethod
    def _read_if_right(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        if _conflicts(info) is None:
            return handler(value)
        try:
            return value if value is _NOT_READ else handler(value)
        except ValidationError:
            return _NOT_READ

    @model_validator(mode="wrap")
    @classmethod
    def _read_what_is_right(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if _conflicts(info) is None or not isinstance(data, dict):
            return handler(data)
        required = {name: _NOT_READ for name, field in cls.model_fields.items() if field.is_required()}
        known = {name: value for name, value in data.items() if name in cls.model_fields}
        read = handler(required | known)
        for name, value in tuple(vars(read).items()):
            if value is _NOT_READ or (name not in known and len(known) < len(data)):
                del vars(read)[name]
        return read


def conflict(message: str, *path: str | int) -> PydanticCustomError:
    """Return an error about a conflict between several keys.

    path: the key, from the top, at which it is reported; the loader reads it from the error's context.
    """
    return PydanticCustomError("conflict", "{message}", {"message": message, "path": path})


def refuse(info: ValidationInfo, *checks: Iterator[PydanticCustomError]) -> None:
    """Raise all errors that checks make with `conflict` as one, if there are any: a validator can raise only once.

    info: of the validation; see CONFLICTS. A check ends where it needs a key that was not read.
    """
    found: list[Any] = []
    for check in checks:
        try:
            for one in check:
                found.append(one.context)  # noqa: PERF401 - what came before NotRead counts
        except NotRead:
            continue
    if (conflicts := _conflicts(info)) is not None:
        conflicts += found
    elif found:
        message = "; ".join(one["message"] for one in found)
        raise PydanticCustomError("conflicts", "{message}", {"message": message, "conflicts": tuple(found)})


def _conflicts(info: ValidationInfo) -> list[Any] | None:
    return None if info.context is None else info.context.get(CONFLICTS)

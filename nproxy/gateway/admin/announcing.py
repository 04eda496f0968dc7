"""Request bodies by which servers and operators change an upstream's replicas."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from nproxy.config.checking import message_of
from nproxy.config.replicas import Replica, parse_address
from nproxy.config.sections import Settings
from nproxy.config.values import Weight
from nproxy.openai.body import Body
from nproxy.openai.errors import invalid_request, shorten

LONGEST_URL = 512
SHORTEST_LEASE, LONGEST_LEASE = 1.0, 3600.0

Said = TypeVar("Said", bound=Settings)


def _address(value: object) -> Replica:
    if not isinstance(value, str):
        raise PydanticCustomError("address", "must be a URL such as http://10.0.0.1:8000/v1")
    if len(value) > LONGEST_URL:
        raise PydanticCustomError("address", "must have at most {most} characters", {"most": LONGEST_URL})
    return parse_address(value)


def _reachable(replica: Replica) -> Replica:
    """Refuse Unix sockets: an announcement may come from another machine, and must not name files of this one."""
    if replica.socket is not None:
        raise PydanticCustomError("address", "must begin with http:// or https://")
    return replica


Address = Annotated[Replica, BeforeValidator(_address)]


class Announcement(Settings):
    """A server announces itself."""

    url: Annotated[Replica, BeforeValidator(lambda value: _reachable(_address(value)))]
    """The base URL by which the gateway is to call it."""
    models: (
        Annotated[tuple[Annotated[str, Field(min_length=1, max_length=256)], ...], Field(min_length=1, max_length=1024)]
        | None
    ) = None
    """The models that it serves; None for all of the upstream's."""
    weight: Weight = 1
    """Its share of the calls, relative to the weights of the other replicas."""
    lease_seconds: Annotated[float, Field(ge=SHORTEST_LEASE, le=LONGEST_LEASE, strict=True)] = 30
    """It is removed if it does not announce itself again within so many seconds."""


class Drained(Settings):
    """An operator drains a replica, or ends its drain. Also used for the URL of a server that leaves."""

    url: Address


def read(shape: type[Said], raw: bytes) -> Said:
    """Parse a body. Raises ApiError 400 that names the first invalid field."""
    fields = Body.parse(raw).fields
    try:
        return shape.model_validate(fields)
    except ValidationError as invalid:
        problem = invalid.errors(include_url=False)[0]
    param = shorten(".".join(map(str, problem["loc"])))
    wrong = message_of(shape, problem["loc"], problem)
    message = f"Invalid '{param}': {wrong}{'' if wrong.endswith('?') else '.'}"
    raise invalid_request(message, param=param, code="invalid_value")

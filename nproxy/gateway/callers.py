"""Callers: the name and the limits of a key."""

from __future__ import annotations

from collections.abc import Iterable

from nproxy.openai.errors import invalid_request, model_not_found
from nproxy.openai.frozen import frozen


@frozen
class Rates:
    """The most requests, choices and tokens per minute; None for no limit."""

    requests: int | None = None
    choices: int | None = None
    tokens: int | None = None


UNLIMITED = Rates()


def rates_of(requests: int | None, choices: int | None, tokens: int | None) -> Rates:
    """Return these rates; the object UNLIMITED if there are none."""
    rates = Rates(requests, choices, tokens)
    return UNLIMITED if rates == UNLIMITED else rates


_OF_FURTHER_MODELS = frozenset({"models", "fallbacks"})
"""Fields that name further models."""


@frozen
class Caller:
    """A client, as identified by its key."""

    name: str
    """From the keys file, never text that the client sent; a label of metrics. "" if it has no name."""
    bucket: str
    """The key under which its limits are counted: the name, or else a value that distinguishes credentials without
    revealing them."""
    weight: float = 1.0
    """Its share of free permits, against those of the other callers that wait."""
    choices: int | None = None
    """The most of its choices in flight; None for the configuration's limit."""
    rates: Rates = UNLIMITED
    """Its limits per minute, those for all clients included; the object UNLIMITED if there are none."""
    models: frozenset[str] | None = None
    """The models that it may use; None for all."""

    def may_use(self, model: str) -> bool:
        """Whether the caller may use a model. model: the name that clients use."""
        return self.models is None or model in self.models

    def demand_model(self, model: str, fields: Iterable[str] = ()) -> None:
        """Raise ApiError 404 if the caller may not use a model: it is not on their list of models either.

        fields: the names of the body's fields. Some servers (Go's encoding/json) read `MODEL` as `model`, and some
        routers (OpenRouter, LiteLLM) use further models that other fields name, so a body with such a field is refused
        with 400 if the caller may use some models only.
        """
        if self.models is None:
            return
        if model not in self.models:
            raise model_not_found(model)
        for name in fields:
            folded = name.lower()
            if folded == "model" and name != folded:
                raise invalid_request("The body has the field 'model' twice, in different letter case.", param="model")
            if folded in _OF_FURTHER_MODELS:
                message = f"This key is limited to certain models; '{folded}' could make a server use others."
                raise invalid_request(message, param=folded)


ANYBODY = Caller(name="", bucket="")
"""The caller of a request that has not been let in, or whose endpoint needs no key."""
